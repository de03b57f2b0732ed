"""Source code, read without importing it: packages, signatures, annotations."""

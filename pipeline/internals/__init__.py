"""Private and undocumented names of other libraries: one module per library, each with a test of what it relies on."""

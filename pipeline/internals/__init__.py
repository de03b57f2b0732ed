"""Private and undocumented names of other libraries, one module per library, with tests of what they rely on."""

"""The command line: flags, overrides, composition, help, completion."""

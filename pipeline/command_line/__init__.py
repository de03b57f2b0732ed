"""The command line: verbs, flags, overrides, composition, help and completion."""

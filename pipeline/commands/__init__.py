"""The verbs of the command, one module each: `main(words)` runs the verb and returns the exit code.

Imports that only the work of a verb needs are inside its functions, so `--help` and errors appear at once.
"""

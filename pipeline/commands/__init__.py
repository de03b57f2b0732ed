"""The verbs of the command, one module each: `main(words)` runs the verb and returns the exit code.

A module imports what only its work needs inside its functions, so `--help` and wrong options are answered at once.
"""

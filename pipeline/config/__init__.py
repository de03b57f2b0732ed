"""The configuration: its schemas, the checked values, and the errors for wrong ones."""

"""Scripts that a user would write without this project."""

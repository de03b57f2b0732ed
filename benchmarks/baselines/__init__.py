"""What a user would write without this project, as scripts of their own."""

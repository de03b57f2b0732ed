"""Tasks: everything that depends on what is predicted, and nothing that depends on what is given."""

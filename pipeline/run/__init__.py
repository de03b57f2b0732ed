"""A run: resumed, forked or new; its stages, console, summary, identity and end."""

"""Files that are written atomically, and files that runs share."""

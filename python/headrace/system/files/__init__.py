"""Files that are written whole, private to the user, and never through a link."""

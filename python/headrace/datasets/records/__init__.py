"""A dataset as a table of records, and its pictures in notebooks."""

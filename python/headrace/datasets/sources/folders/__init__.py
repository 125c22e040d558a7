"""Image folders, and lists of image files."""

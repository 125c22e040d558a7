"""Items made by the script's own code: the code rewritten, its calls decided, its images planned."""

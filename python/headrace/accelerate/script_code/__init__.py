"""Run the dataset's own code without decoding, to learn which files and transforms each item needs."""

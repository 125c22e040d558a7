"""The times of batches and steps, for each kind of loader."""

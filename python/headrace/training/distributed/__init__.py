"""The processes of one training run: started, numbered, and brought together."""

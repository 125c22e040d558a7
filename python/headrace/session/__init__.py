"""What a run saw, saved as data: the session model, and the sources a session can be read from."""

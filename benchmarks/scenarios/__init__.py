"""Training jobs with one known fault each, what a diagnosis should say of them, and what other tools said."""

"""A CreateTrainingJob request: written, and checked before it is sent."""

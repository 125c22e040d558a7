"""The learner: forward, backward, optimizer."""

"""Weights on disk: checkpoints, resume, uploads, export, evaluation."""

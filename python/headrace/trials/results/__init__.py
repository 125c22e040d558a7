"""Rows, projections and targets."""

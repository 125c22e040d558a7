"""Metrics and loggers."""

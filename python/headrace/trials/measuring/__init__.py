"""Measure the cells of an experiment: headrace's loaders, those of other projects, several ranks, a training."""

"""Measure the cells of an experiment: headrace's loaders, those of other projects, several ranks, a training.

A cell is one measurement, of one loader with one model and one augmentation load. One process measures a group of cells.
"""

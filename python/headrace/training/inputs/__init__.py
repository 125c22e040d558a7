"""The data of a run: datasets, loaders for training and evaluation, images to predict."""

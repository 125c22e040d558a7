"""Datasets become batches: order, caches, the feed of native threads, and the Loader."""

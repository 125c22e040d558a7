"""Decode batches, given the records of each: options, caches, the feed."""

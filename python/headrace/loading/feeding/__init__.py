"""Index batches become filled batches: options, caches, the feed."""

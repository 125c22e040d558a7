"""Datasets: records, packed shards, and the sources that records are read from."""

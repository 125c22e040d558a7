"""Decide what is packed: options, listing of records, assignment to shards, result."""

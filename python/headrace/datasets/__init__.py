"""Datasets: records, packed shards, and the sources that records are read from.

Its rooms, ground first:

- `records`: a dataset as a table of records, and its pictures in notebooks.
- `shards`: the packed format: keys, tar members, index, manifest.
- `sources`: one module for each kind of source.
"""

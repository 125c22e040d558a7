"""Datasets: records, packed shards, and the sources that records are read from.

Its rooms, ground first. A room imports only from rooms above it; the modules beside the rooms import from all of them.

- `records`: a dataset as a table of records, and its pictures in notebooks.
- `shards`: the packed format: keys, tar members, index, manifest.
- `sources`: one module for each kind of source.
"""

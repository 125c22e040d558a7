"""Datasets become batches: order, caches, the feed of native threads, and the Loader.

Its rooms, ground first. A room imports only from rooms above it; the modules beside the rooms import from all of them.

- `statistics`: counts and times of a loader.
- `order`: the order of records: arithmetic, block shuffle, ranks and hosts.
- `feeding`: index batches become filled batches: options, caches, the feed.
- `batches`: what happens to a finished batch: MixUp, copy to the GPU, views.
"""

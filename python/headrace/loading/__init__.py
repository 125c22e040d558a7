"""Load batches from datasets: order, caches, the feed of native threads, and the Loader.

Its rooms, ground first:

- `statistics`: counts and times of a loader.
- `order`: the order of records: arithmetic, block shuffle, ranks and hosts.
- `feeding`: index batches become filled batches: options, caches, the feed.
- `batches`: what happens to a finished batch: MixUp, copy to the GPU, views.
"""

"""One module for each kind of source: folders, archives, lists, object stores, pipes. `datasets.open` chooses among them.

Its rooms, ground first. A room imports only from rooms above it; the modules beside the rooms import from all of them.

- `folders`: image folders, and lists of image files.
- `archives`: Tar, RecordIO, TFRecord and packed shards on a local disk.
- `remote`: datasets in object stores.
"""

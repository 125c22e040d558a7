"""One module for each kind of source: folders, archives, lists, object stores, pipes. `datasets.open` chooses among them.

Its rooms, ground first:

- `folders`: image folders, and lists of image files.
- `archives`: Tar, RecordIO, TFRecord and packed shards on a local disk.
- `remote`: datasets in object stores.
"""

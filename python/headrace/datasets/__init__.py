"""Datasets: records, packed shards, and the sources that records are read from.

- `notebook`: Datasets and loaders as HTML for notebooks: a title, facts, and a strip of pictures.
- `open`: Open a dataset by path or URL: detect its kind and call the module in `sources` that reads it.
- `pictures`: Thumbnails of records spread evenly over a dataset.
- `record_keys`: Record keys as one column: a blob of UTF-8 and the start of each key. A tuple of str takes five times as
  much memory.
- `records`: A dataset: a table of records (location of the bytes, label), class names and a fingerprint.
- `sidecar_files`: Sidecar files: masks, captions, second images (`KEY.seg.png`, `KEY.txt`) of each record, as ragged
  columns.
- `shards/`: the packed format of docs/reference/format.md: keys, tar members, index, manifest.
- `sources/`: a module for each kind of source; `sources/remote/` reads object stores, with retries in `sources/remote/retry`.
- `splits`: Folders that hold the splits of a dataset: `train` beside `val`, `valid`, `validation` or `test`.
"""

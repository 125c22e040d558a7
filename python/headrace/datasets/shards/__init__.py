"""The packed format of docs/reference/format.md: keys, tar members, index and manifest. No other module writes or parses it.

- `index`: `index.safetensors`: the location of every record, as memory-mapped columns (docs/reference/format.md, "Index").
- `keys`: Record keys: conversion between file names and keys that WebDataset readers accept (docs/reference/format.md, "Keys").
- `manifest`: `headrace.json`, the manifest of a packed dataset; a folder with a manifest is complete (docs/reference/format.md,
  "Manifest").
- `tar`: Tar members of a packed dataset: POSIX ustar; every header field but name, size and checksum is constant.
"""

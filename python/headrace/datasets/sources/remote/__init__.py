"""Datasets in object stores (`s3:// gs:// az:// http:// https://`), through the optional package obstore.

`store` makes the requests, `retry` decides which failures are tried again, `access` finds credentials and endpoints, and
`redirects` keeps them from other hosts. `shards` fetches records of packed datasets when they are read, `containers` those of
containers larger than the cache, `mirror` copies everything else. `shard_cache` and `eviction` manage the cache on local disk,
`locks` keeps two processes from fetching the same bytes.
"""

"""Datasets in object stores (`s3:// gs:// az:// http:// https://`), through the optional package obstore.

`store` speaks to the store, `shards` reads packed datasets record by record as they are needed, `containers` foreign ones that
are larger than the cache, `mirror` copies anything else.
"""

"""Tar, RecordIO, TFRecord and packed shards on a local disk."""

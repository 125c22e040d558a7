"""What is read: records, packed shards, and the sources that hold them."""

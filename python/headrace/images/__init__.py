"""One image: decode it, read its header, insert restart markers."""

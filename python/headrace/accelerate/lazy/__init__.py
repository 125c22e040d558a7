"""Lazy images: Pillow images, and JPEGs read by other libraries, that are decoded natively when their pixels are first used."""

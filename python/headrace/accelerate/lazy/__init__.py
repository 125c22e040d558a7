"""Loaders taken over in part: images that are decoded natively when something looks at their pixels."""

"""Deferred tensors: workers pass encoded images on, and native threads in the training process decode them."""

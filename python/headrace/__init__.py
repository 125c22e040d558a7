"""headrace keeps GPUs fed: it finds why an image training job waits, and removes the wait.

Importing this package is light: neither torch nor boto3 nor numpy is loaded before it is used.
"""

from __future__ import annotations

from headrace import errors

__all__ = ["errors"]

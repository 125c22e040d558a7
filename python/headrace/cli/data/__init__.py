"""`inspect`, `pack`, `verify`."""

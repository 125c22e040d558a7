"""The packed format of docs/reference/format.md: keys, tar members, index and manifest. No other module writes or parses it."""

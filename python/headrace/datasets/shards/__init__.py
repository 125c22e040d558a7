"""The packed format of docs/format.md: keys, tar members, index and manifest. It is written and read here only."""

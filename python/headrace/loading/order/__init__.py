"""The order of records: arithmetic, block shuffle, ranks and hosts."""

"""`headrace cost`: time and money of an epoch and a run on each machine, from known rates and a dated table of prices.

Its rooms, ground first:

- `market`: prices of machines and spot capacity, from the dated table or live.
- `estimates`: time and money of an epoch and a run, with intervals.
"""

"""`headrace cost`: what an epoch and a run cost where, from measured or published rates and a dated table of prices.

Its rooms, ground first:

- `market`: prices of machines and spot capacity, from the dated table or live.
- `estimates`: time and money of an epoch and a run, with intervals.
"""

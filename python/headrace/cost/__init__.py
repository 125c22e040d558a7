"""`headrace cost`: what an epoch and a run cost where, from measured or published rates and a dated table of prices.

Its rooms, ground first. A room imports only from rooms above it; the modules beside the rooms import from all of them.

- `market`: prices of machines and spot capacity, from the dated table or live.
- `estimates`: time and money of an epoch and a run, with intervals.
"""

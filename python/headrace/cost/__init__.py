"""`headrace cost`: what an epoch and a run cost where, from measured or published rates and a dated table of prices.

- `answer`: The whole answer to a cost question: rows, choice, trade-offs, input modes, other loaders, sensitivity.
- `budget`: Choose a machine and a purchase by deadline, budget and number of instances.
- `calibrate`: Compare predicted with observed seconds of finished runs, and keep a factor for each kind of machine.
- `chart`: The chart of time against money as a PNG file; rows that no other beats are named.
- `estimate`: A quantity with an interval, its kind (given, measured, published, estimated) and its source.
- `fix_effects`: What each fix of a diagnosis saves in money, for an epoch and for the run, on the machine of the session.
- `floors`: The rates that GPU, CPU, network, requests and disk of an instance allow; the lowest binds.
- `input_modes`: Time and money until the first batch and for each epoch, by the way the data reach the instance.
- `live_prices`: Prices from AWS, kept in a cache with their date.
- `measured`: Rates that were measured: from a session, or from the JSON documents of tune and trials.
- `page`: The HTML page of a cost estimate.
- `prices`: The dated table of instances and prices in this package.
- `regions`: The names of AWS's regions, so that a misspelt one gets near names.
- `runs`: The rows of a cost estimate: each instance, service and rate with its time and money.
- `sensitivity`: Which inputs change the choice.
- `spot`: The expected time and money of a spot run, with interruptions, checkpoints and restarts.
- `spot_advisor`: AWS's Spot Instance Advisor: the saving and the share of instances interrupted within a month, by region and
  type.
"""

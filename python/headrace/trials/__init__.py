"""`headrace trials`: the articles' experiments, repeated on this machine.

Its rooms, ground first:

- `experiment`: one experiment: its cells, source, transforms, device.
- `inputs`: the data of the experiments, in each form and place.
- `measuring`: the measurements: loaders, peers, ranks, training.
- `results`: rows, projections and targets.
- `pages`: charts, page and summary.
"""

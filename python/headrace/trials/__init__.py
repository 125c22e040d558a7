"""`headrace trials`: repeat published experiments on image loading on this machine.

Its rooms, ground first:

- `experiment`: an experiment before it is run: its cells, data, transforms and device.
- `inputs`: the data of the experiments, in each form and place.
- `measuring`: measure the cells of an experiment: loaders, other projects' loaders, ranks, training.
- `results`: the results as data: rows of the table, projections to another machine, targets.
- `pages`: the results for people: charts, HTML page, summary in sentences.
"""

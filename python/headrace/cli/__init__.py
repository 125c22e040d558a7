"""The command line: one module for each verb (`headrace VERB`), and the modules that the verbs share.

Its rooms, ground first:

- `shared`: what the verbs share: output, types of numbers, options of prices.
- `data`: `inspect`, `pack`, `verify`.
- `profile`: `diagnose`, `watch`, `run`, `report`, `compare`, `doctor`, `demo`.
- `train`: `train`, `tune`, `evaluate`, `predict`, `export`.
- `cloud`: `cost`, `launch`, `trials`.
"""

from headrace.cli.interruption import end_quietly

end_quietly()  # before the modules of the verbs are imported

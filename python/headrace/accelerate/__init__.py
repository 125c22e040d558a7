"""`headrace run`: replace the image loading of a PyTorch script where the replacement is provably equal.

Its rooms, ground first:

- `runtime`: what all loaders of the process share: the native engine, JPEG indexes, memory of batches, `--data-map`.
- `workers`: what a worker process would have: its random streams, settings, warnings, errors.
- `script`: what the script's own modules say and hold: their text, their state, what they have replaced.
- `transforms`: the script's transforms, translated into headrace's.
- `script_code`: items made by the script's own code: the code rewritten, its calls decided, its images planned.
- `whole`: loaders taken over as a whole: recognised, compiled, iterated.
- `lazy`: loaders taken over in part: images that are decoded natively when something looks at their pixels.
- `deferred`: tensors of lazy images that native threads compute in the training process.

`hook` decides for each DataLoader, and `check` compares before each take-over.
"""

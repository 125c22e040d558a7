"""`headrace run`: speed up the image loading of an unchanged PyTorch script; batches stay equal bit for bit.

Words used in this folder:

- item: what `dataset[i]` returns.
- take over a loader: give the script batches that native threads decode, in place of DataLoader's own. As a whole: headrace
  makes the batches. In part: the script's own workers make them, with native image decoding.
- refuse a loader: raise `Unsupported`. The script then loads it as without headrace.
- lazy image: a Pillow image that is decoded when its pixels are first used. Deferred tensor: the same for a tensor.
- plan an item: run the code of the dataset without decoding, to learn which files and transforms give its tensors.
- way: one path through native code, such as one filter or one flag. Each is compared with the library that it replaces.

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

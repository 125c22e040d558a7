"""`headrace run`: speed up the image loading of an unchanged PyTorch script; batches stay equal bit for bit.

Words used in this folder:

- item: what `dataset[i]` returns.
- take over a loader: give the script batches that native threads decode, in place of DataLoader's own. As a whole: headrace
  makes the batches. In part: the script's own workers make them, with native image decoding.
- refuse a loader, or a stage of its recognition: give a `Refusal`. A refused loader is loaded as without headrace.
- lazy image: a Pillow image that is decoded when its pixels are first used. Deferred tensor: the same for a tensor.
- plan an item: run the code of the dataset without decoding, to learn which files and transforms give its tensors.
- way: one path through native code, such as one filter or one flag. Each is compared with the library that it replaces.

Its rooms, from the bottom up:

- `runtime`: shared by all loaders of a process: native threads, JPEG indexes, batch memory, `--data-map`.
- `workers`: imitate a DataLoader worker in the training process: random numbers, settings, warnings, errors.
- `script`: inspect the script's modules: their text, their state, the library functions that they replaced.
- `transforms`: translate the script's transforms into headrace's.
- `script_code`: plan items by running the dataset's own code under control.
- `whole`: recognise loaders, and take them over as a whole: compile, iterate.
- `lazy`: take loaders over in part: lazy images in the script's own workers.
- `deferred`: as `lazy`, with deferred tensors that native threads of the training process compute.

`hook` decides for each DataLoader, and `check` compares batches before each take-over.
"""

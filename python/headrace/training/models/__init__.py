"""Models: built by name, initialised with pretrained weights, read back from a run.

- `blurpool`: BlurPool: a small low-pass filter before each subsampling, so that a shifted image gives nearly the same
  scores.
- `factory`: Models by name: classifiers of torchvision and timm, small ResNets for 32 × 32 images, or the user's own
  factory.
- `pretrained`: Pretrained weights: from a file, or those of torchvision and timm. Nothing but tensors is unpickled.
- `trained_weights`: Trained weights and their model, read from the folder, the final weights or a checkpoint of `headrace
  train`.
"""

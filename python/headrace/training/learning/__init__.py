"""One training step: forward, MixUp or CutMix, backward, optimizer, and the watch over losses that are not finite."""

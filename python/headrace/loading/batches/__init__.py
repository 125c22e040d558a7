"""Process a decoded batch: MixUp and CutMix, copy to the GPU, views."""

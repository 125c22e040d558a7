"""What happens to a finished batch: MixUp, copy to the GPU, views."""

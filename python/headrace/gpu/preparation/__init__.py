"""The last steps of a batch on its device, in torch or Triton."""

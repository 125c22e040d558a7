"""The GPU side of the input: decoding, augmentation and the last steps of a batch on the device, and who decodes what.

Its rooms, ground first:

- `preparation`: the last steps of a batch on its device, in torch or Triton.
- `decoder`: the CUDA decoder of JPEGs with restart markers.
- `augmentation`: augmentation on the device, bit for bit as the CPU kernel.
"""

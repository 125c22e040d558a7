"""One image: decode it, read its header, insert restart markers.

- `decode`: Decode, crop, resize and flip a batch of images into the caller's memory, in one call.
- `header`: Headers of encoded images: format, size, and for JPEG how it was encoded. No pixel is decoded.
- `interpolation`: The interpolations that resize images: Pillow's filters, by torchvision's names.
- `photographs`: Photographs for the demo and the trials: a folder of images like ImageNet's, cropped from those that
  scikit-image and scikit-learn ship.
- `restart_markers`: Insert restart markers into a JPEG without loss, so that decoding can start in the middle.
- `thumbnails`: Small pictures as PNG files, written without Pillow (PNG specification, 3rd edition).
- `raster`: Pillow, opened for raster formats only: the one place where headrace itself opens an image with it.
- `with_pillow`: Images decoded by Pillow: formats that are not decoded natively, and pictures for people.
"""

"""Inspection of datasets, object stores and machines: inspect, verify, contact sheets, doctor.

- `contact_sheet`: A contact sheet: thumbnails of images spread evenly over a dataset, as one PNG file.
- `decode_cost`: The cost of decoding the images of a dataset, as CPU time on one core of this machine.
- `doctor`: The examination of a machine before training: hardware, software, what does not fit together, a command for each
  remedy.
- `inspect`: `headrace inspect`: facts about a dataset, from its index and the headers of a sample of its images.
- `object_store_probe`: Probe an object store with the loader's own client: whether it answers from here, its latency, the
  rate of one connection.
- `object_sizes`: The sizes of the objects that an object store would hold: the image files of a folder, or the shards and
  containers.
- `problems`: The result of `headrace verify`: the problems found, and what was checked.
- `verify`: `headrace.verify`: check a packed dataset against its manifest, every byte, and on request every pixel.
- `verify_folder`: The check of a folder copy (`pack --layout folder`): every file, its size, its CRC-32C, its pixels.
"""

"""One module for each kind of source: folders, archives, lists, object stores, pipes. `datasets.open` chooses among them.

- `container_index_cache`: Cached indexes of containers without an index (tar, RecordIO, TFRecord); the first open builds
  one.
- `containers`: Shared by tar, RecordIO and TFRecord: the records found in containers become one Dataset.
- `fifo`: Named pipes, through which SageMaker's Pipe mode sends a channel.
- `folder`: Image folders as torchvision's ImageFolder reads them: `root/CLASS/…/image.jpg`, classes by sorted folder name.
- `listed_images`: The dataset of a list of image files with labels, whatever the format of the list (`lst`, `table`).
- `lst`: Lists of im2rec (`.lst`): lines of `NUMBER <tab> LABEL <tab> PATH`, paths relative to a folder of images.
- `masks`: The masks of a dataset: sidecar files in its tar archives, or files of a folder.
- `pipe`: SageMaker's Pipe mode: a channel arrives as a stream in a named pipe, CHANNEL_0 for the first pass, CHANNEL_1 for
  the next.
- `readahead`: Readahead of shards on local disk: announce the next records to the kernel, which reads them before a thread
  needs them.
- `recordio`: MXNet's RecordIO (.rec, with or without .idx), as im2rec and SageMaker's image algorithms write it.
- `remote/`: object stores: ranged reads, retries, the cache of shards on local disk.
- `shards`: Packed datasets on local disk (docs/reference/format.md). The index is memory-mapped, so opening takes
  milliseconds at any size.
- `stream`: Records from a stream of bytes that can be read only once, in order, as SageMaker sends it through a named pipe.
- `table`: Tables of images: CSV, TSV and Parquet files with a column of paths and a column of labels.
- `tar`: Tar archives of other tools, in WebDataset's layout or plain (`CLASS/image.jpg`), indexed and read in place.
- `tfrecord`: TFRecord files of `tf.train.Example`s with `image/encoded` and `image/class/label`, as TensorFlow's ImageNet
  scripts write.
"""

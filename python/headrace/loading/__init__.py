"""Datasets become batches: order, caches, the feed of native threads, and the Loader.

- `batch_transforms`: RandomErasing, MixUp and CutMix on a finished batch, in torch, on the device of the batch.
- `block_shuffle`: The block shuffle: shards in random order, and their records shuffled within a window of shards.
- `byte_cache`: The Loader's `cache=`: keep the encoded bytes of records in memory or on a local disk after their first read.
- `cuda_transfer`: Copy of batches to the GPU: pinned memory, an asynchronous copy on its own stream, normalisation on the
  GPU.
- `feed`: The feed: index batches become filled batches, in order, decoded ahead by native threads.
- `gpu_decode`: GPU decoding and augmentation in the feed: a part of each batch is made on the GPU, in a thread of its own.
- `jpeg_index_cache`: The folder that keeps JPEG indexes from one run to the next: a file for each list of records.
- `loader`: Loader: a dataset and a pipeline of transforms become batches, each record exactly once per epoch.
- `mixing`: MixUp and CutMix: the arithmetic on a batch. The partner of an image is its neighbour: the batch rolled by one.
- `options`: The options of a Loader, checked.
- `order`: The order of records as arithmetic: (seed, epoch, position) -> record, with no list of the epoch in memory.
- `other_frameworks`: Batches for TensorFlow, Keras and JAX: the memory that the native threads filled, without a copy where the
  framework allows.
- `rank_messages`: Small values that the ranks of a job send each other, as JSON: torch's exchange unpickles what comes.
- `resume`: Saved loader states: `make_state` describes the position of a loader, `read_position` reads it for a loader that
  continues.
- `show_batch`: The pictures of a batch, as a matplotlib figure.
- `shuffle_prefetch`: Fetch the next window of a block shuffle from the object store while the current one is in use.
- `stats`: Counts and times of a loader. A value that was not measured is None, never 0.
- `step_clock`: How long a training step takes, measured without waiting for the device.
- `streaming`: A pass over a stream as batches: a thread reads ahead and shuffles records in a buffer of bounded size.
- `uneven_shards`: Datasets in parts: each host sees only its own shards (SageMaker's ShardedByS3Key), and all ranks make
  equally many batches.
- `views`: The views of a loader: one pipeline and feed for each pipeline of `Views`, usually a single one.
"""

"""Short measurements that choose the settings of a run: batch size, compile mode, threads, prefetch.

- `batch_size`: Choose a batch size by throughput: the smallest that is nearly as fast as the fastest, not the largest that
  fits.
- `compiling`: Choose a compile mode: measure whether torch.compile and CUDA graphs make this model faster here, and cache
  the answer.
- `compute_rate`: The compute rate of a model: how fast it trains on one random batch that is already on the device.
- `deadline`: The wall-clock limit of a series of measurements.
- `learning_rate`: The learning-rate range test of Smith 2017 (arXiv 1506.01186): train with a rate that grows, and see where
  loss falls.
- `machine_use`: What used the machine during a measurement: this program's threads, other programs, storage and network.
- `memory_limit`: The memory that a search for a batch size on the CPU may use, and what a batch of some size will need.
- `rates`: Three rates that bound a training run: input without a model, compute without input, and both together.
- `tune`: The measurements of `headrace tune`: batch size, compile mode, threads, batches ahead; and what binds the training.
"""

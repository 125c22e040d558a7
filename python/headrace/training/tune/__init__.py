"""Short measurements that choose the settings of a run: batch size, compile mode, threads, batches ahead."""

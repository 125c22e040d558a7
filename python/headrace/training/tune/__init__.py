"""Short measurements that choose a run's settings: rates, batch size, compilation."""

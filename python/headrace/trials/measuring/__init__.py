"""The measurements: loaders, peers, ranks, training."""

"""Several processes of one training run: our launcher, ranks, and how the ranks meet."""

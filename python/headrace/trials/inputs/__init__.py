"""The data of the experiments, in each form (folder, shards, containers) and place (disk, object store, pipe)."""

"""Short experiments with the job: a probe of reads, overridden arguments, the same batch again."""

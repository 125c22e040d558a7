"""Several processes of one training run: our launcher, ranks, and how the ranks meet.

- `membership`: Proof that the other end of each connection is a rank of this run, on a machine that other users share.
- `processes`: Our launcher: start one process for each GPU of this machine, forward signals, and end all processes when one
  fails.
- `ranks`: The ranks of a training run: which one this process is, how they meet, and how they agree without waiting for
  GPUs.
- `rendezvous`: How the ranks of one attempt find each other in a store that still holds the keys of an earlier attempt.
"""

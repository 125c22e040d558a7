"""What the training loop does beside its steps: loss, first step, pauses, ranks, operators."""

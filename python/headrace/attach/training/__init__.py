"""Record what else the training loop does: loss, first step, pauses, phases of a step, operators."""

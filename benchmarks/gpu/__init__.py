"""What awaits a GPU, as one command: `measurements` declares it, `run` runs it, the others measure."""

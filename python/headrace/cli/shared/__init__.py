"""What the verbs share: output, types of numbers, options of prices."""

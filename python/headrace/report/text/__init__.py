"""A diagnosis as text: numbers, parts of the step, the first screen."""

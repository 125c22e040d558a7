"""The parts of a container's entry point: reading SageMaker's files, and running the command as the first process."""

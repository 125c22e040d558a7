"""`headrace launch local`: run a SageMaker training job on this machine, with the same folders, files and signals."""

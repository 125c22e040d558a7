"""`headrace launch local`: SageMaker's contract with a training container, on this machine."""

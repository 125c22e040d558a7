"""The data of the experiments, in each form and place."""

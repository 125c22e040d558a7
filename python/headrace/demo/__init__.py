"""`headrace demo`: an ordinary training script, and the steps that are run with both."""

"""`headrace demo`: a folder of photographs, an ordinary training script, and the steps that are run with both."""

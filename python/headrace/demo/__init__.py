"""`headrace demo`: an ordinary training script, and the steps that are run with both.

- `run_demo`: The demo: diagnose a slow training script, run it faster unmodified, pack its images, and train from the pack.
- `script`: Train ResNet-18 on a folder of images, one sub-folder per class.
- `steps`: Run one command of the demo as a user would, show its output, and return its JSON document.
"""

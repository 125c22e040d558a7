"""The code that runs inside the user's process: hooks that time the training, and the recorder that writes the session.

`load_hooks` installs the hooks when PyTorch or TensorFlow is imported (`torch_hooks`, `tensorflow_hooks`). `launch` starts the
user's command so that this happens, and `sampler` is the process that samples the machine. The folder imports the standard
library only. An error in a hook turns the hook off, prints one line, and never reaches the user's script.
"""

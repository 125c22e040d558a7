"""The command line: one module for each verb (`headrace VERB`), and the modules that the verbs share.

- `compare`: compare the rates, the parts of the step and the settings of two saved sessions.
- `completion`: a script with which a shell completes verbs, options and their values.
- `cost`: time and money of an epoch and a run on each instance type.
- `demo`: diagnose, run, pack and train on this machine in a few minutes.
- `diagnose`: run a training command unmodified, find what makes it slow, and predict the gain of fixes.
- `doctor`: print facts about this machine, what does not fit together, and the remedies.
- `evaluate`: accuracy of trained weights on a dataset.
- `export`: trained weights in other formats.
- `finished_job`: `headrace diagnose --sagemaker-job NAME` and `--from-files FOLDER`: diagnose a job that already ran.
- `inspect`: print facts about a dataset.
- `interruption`: Ctrl-C outside of a verb: while modules are imported, and while Python ends.
- `launch`: check, price, send and follow a SageMaker training job, or run it on this machine.
- `main`: The `headrace` command: find the verb, parse its arguments, turn errors into messages and exit codes.
- `missing_packages`: Packages that an extra installs: a verb that needs one which is absent says which extra brings it.
- `number_types`: Types of number for argparse options. Their errors quote the word that was given and say which numbers are
  allowed.
- `other_launchers`: `headrace launch slurm|skypilot|ssh|batch|processing`: write a file that starts the work elsewhere.
- `output`: Output of the command line: results on stdout (text, or one JSON document), progress and messages on stderr.
- `pack`: any image dataset into verified shards.
- `predict`: the most probable classes of images.
- `price_options`: The options that give a price, shared by the verbs that show money.
- `report`: show a saved session as terminal screen, HTML, JSON, Perfetto trace, metrics or scalars.
- `run`: run a training script unmodified, and load its images with headrace where that gives the same job.
- `run_watch`: The diagnosis of each `headrace train` run.
- `session_command`: Options and output that `headrace diagnose` and `headrace watch` share.
- `train`: train a classifier.
- `training_line`: The progress of a training run: one line that fits the terminal, with rate and time left, or plain lines
  in a log.
- `training_options`: Options of a training run: parsed here, whether from the command line or from the TOML file of
  `--config`.
- `trials`: repeat published experiments on this machine.
- `tune`: measure settings for a training run on this machine.
- `verify`: check a packed dataset.
- `watch`: show the diagnosis of a training command while it runs.
"""

from headrace.cli.interruption import end_quietly

end_quietly()  # before the modules of the verbs are imported

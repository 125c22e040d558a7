"""`headrace launch`: training jobs for SageMaker: checked before they are sent, followed, and run on this machine.

- `aws`: Clients of AWS, and their errors in words: what can be tried again, and what the user has to do.
- `container`: What a SageMaker container finds: its folders, hyperparameters, channels and hosts, and the `SM_*` variables from
  them.
- `entry`: The entry point of a training container: `python -m headrace.launch.entry`.
- `first_process`: The first process of a container: it starts one command, hands signals on, collects orphans, and keeps the
  end of stderr.
- `finished_job`: A job that already ran on SageMaker, from what AWS kept: where its billed time went, what set its pace, what
  was lost.
- `follow`: Submit a training job, follow it to its end, stop it: transitions, logs, and what it cost beside what was predicted.
- `metrics`: Metric definitions whose patterns match the log lines of `headrace train`.
- `mistakes`: A mistake in a request: the field, what is wrong with it, and the remedy.
- `other_launchers`: Files that start the work elsewhere: training on Slurm, SkyPilot and over ssh, packing on AWS Batch and
  SageMaker Processing.
- `plan`: What a request will cost, from `headrace.cost`.
- `request_code`: What a request chooses to run on this machine: its author's code, which `launch local` shows before it runs.
- `request`: The CreateTrainingJob request of a training job.
- `request_fields`: Mistakes in single fields of a request, by botocore's description of the service.
- `request_rules`: Mistakes between the fields of a request, which no description of the service holds.
- `validate`: All mistakes of a request, found without network.
"""

"""`headrace launch`: training jobs for SageMaker: checked before they are sent, followed, and run on this machine.

Its rooms, ground first:

- `sagemaker`: AWS's side: requests, the plan, following a job, metrics.
- `job_request`: a CreateTrainingJob request: written, and checked before it is sent.
- `in_container`: what the entry point of a container uses: its environment, the first process.
- `local`: `headrace launch local`: the contract on this machine.
- `finished_job`: a job that already ran, from what AWS kept.
"""

"""`headrace launch`: training jobs for SageMaker: checked before they are sent, followed, and run on this machine.

Its rooms, ground first:

- `sagemaker`: work with SageMaker: expected cost, submitting and following a job, metric definitions.
- `in_container`: the parts of a container's entry point: reading SageMaker's files, running the first process.
- `job_request`: CreateTrainingJob requests: build one, and check it before it is sent.
- `own_code`: a script of a user's own: the folder that travels, the file that starts it under headrace.
- `local`: `headrace launch local`: run a training job on this machine.
- `finished_job`: a job that already ran, from what AWS kept.
"""

from headrace.launch.own_code.under import under

__all__ = ["under"]

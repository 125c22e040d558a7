"""`headrace launch`: run a training job on SageMaker, from a request that is checked before it is sent.

- `metrics`: Metric definitions whose patterns match the log lines of `headrace train`.
- `mistakes`: A mistake in a request: the field, what is wrong with it, and the remedy.
- `plan`: What a request will cost, from `headrace.cost`.
- `request`: The CreateTrainingJob request of a training job.
- `request_fields`: Mistakes in single fields of a request, by botocore's description of the service.
- `request_rules`: Mistakes between the fields of a request, which no description of the service holds.
- `validate`: All mistakes of a request, found without network.
"""

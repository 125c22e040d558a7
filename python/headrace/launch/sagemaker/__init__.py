"""Work with SageMaker: expected cost of a request, submitting and following a job, metric definitions."""

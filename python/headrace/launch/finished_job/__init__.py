"""A job that already ran on SageMaker, from what AWS kept: where its billed time went, what set its pace, what was lost.

- `commands`: Commands with the own script, options and paths of a job that already ran, from AWS's description of the job.
- `diagnose`: Diagnose a job that already ran: a session with its curves, the diagnosis, and where its billed time and money
  went.
- `documents`: The documents of a job that already ran: DescribeTrainingJob, CloudWatch's metrics, and the Debugger's files,
  from a folder.
- `fetch`: Fetch the documents of a job that already ran from AWS into a folder.
- `rules`: The three signs by which articles about slow SageMaker jobs tell what is wrong, as named rules with thresholds.
- `steady`: What the hosts did while they trained: when the GPU first worked, and the mean use from then on.
- `times`: Where the time of a job went: its statuses, the attempts of a spot job, and what of it was billed.
- `use`: The use of a job's machines over time, in shares: from the Debugger's files where there are any, else from CloudWatch.
- `verdict`: The verdict on a job that already ran, from what AWS kept of it. It is less sure than that of a watched run.
"""

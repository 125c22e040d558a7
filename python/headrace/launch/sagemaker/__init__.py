"""AWS's side: requests, the plan, following a job, metrics."""

"""Write the session from inside the job: import hooks, counters, stack samples, log lines."""

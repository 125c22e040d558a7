"""The results of a run as data: rows of the table, projections to another machine, targets."""

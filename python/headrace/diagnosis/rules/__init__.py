"""The rules: each turns measured quantities into one finding, or into None.

`order` calls the rules and decides which finding leads. A rule returns None when a quantity that it needs was not measured.
Thresholds are constants at the top of each module; the report prints them.

`finding` makes a finding. `contention` says when the threads of one process share too few cores.

To add a rule: write the function, add it to `order.RULES`, and add its verdict to `headrace.diagnosis.result.kinds`.
"""

"""The rules: each turns measured quantities into one finding, or into None.

- `input`: STORAGE_LATENCY, STORAGE_BANDWIDTH, NETWORK, CPU_PREP, CPU_SATURATED, CPU_UNEVEN, NO_OVERLAP, COLLATE_IPC: one rule,
  `slow_input`, whose helper `input_kind` chooses among these kinds.
- `gpu`: COMPUTE_BOUND, H2D_BOUND, OVERHEAD_BOUND, SYNC_BOUND.
- `pauses`: STARTUP, PERIODIC_STALL, GC_PAUSE.
- `ranks`: RANK_STRAGGLER, COMMUNICATION.
- `machine`: EXTERNAL_CPU, CPU_QUOTA, THERMAL_THROTTLE, MEMORY_GROWTH, CPU_OVERSUBSCRIBED.

`order` calls the rules and decides which finding leads. A rule returns None when a quantity that it needs was not measured.
Thresholds are constants at the top of each module; the report prints them.

`finding` makes a finding. `contention` says when the threads of one process share too few cores.

To add a rule: write the function, add it to `order.RULES`, and add its verdict to `headrace.diagnosis.kinds`.
"""

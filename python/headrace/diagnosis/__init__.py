"""From a session to a diagnosis.

`diagnose` calls, in this order: `measure` (quantities per rank and machine), `step_model`, `rules` (causes), `fixes` (what to
change, with `prediction`). `kinds` holds the record of each verdict.
"""

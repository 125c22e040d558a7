"""Child processes of headrace, the scheduling of its threads, and versions of the installed software."""

"""`headrace demo`: an ordinary training script (`script`), and the demo that diagnoses it and makes it faster (`run_demo`)."""

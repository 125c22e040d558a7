"""Run a training job while it is watched, then measure, diagnose and report."""

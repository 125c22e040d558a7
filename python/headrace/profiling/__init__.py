"""Watch a training job, then measure its images and files, diagnose and report."""

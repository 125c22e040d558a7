"""Training code of a user's own: its folder as it travels to a job, and the file that starts it there under headrace."""

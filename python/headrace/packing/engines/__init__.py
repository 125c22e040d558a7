"""Where units are packed: threads of this process, or a Ray cluster."""

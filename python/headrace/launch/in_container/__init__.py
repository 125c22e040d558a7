"""What the entry point of a container uses: its environment, the first process."""

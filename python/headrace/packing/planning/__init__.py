"""What is packed: options, listing, plan, result."""

"""What a plan needs on each device, what the machine has, and what can be traded."""

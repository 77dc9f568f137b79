"""`cdcd handover`: another server takes the place of the one that a pipeline reads, with the same topics."""

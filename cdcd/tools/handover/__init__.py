"""`cdcd handover`: replaces the server that a pipeline reads by another server, with the same topics."""

"""What runs around the daemon: local servers, the demo, and files for those who deploy it."""

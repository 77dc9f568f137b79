"""Large volumes: `make soak`."""

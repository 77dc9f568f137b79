"""Handovers to a new server under writes and kills drawn from a seed; `python -m tests.switchover`."""

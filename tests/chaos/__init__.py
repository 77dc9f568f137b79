"""Everything that can be killed is killed, at random, while a workload runs: `make chaos`, or `python -m tests.chaos`.

Each cell of the matrix is a server version, a way of streaming and two-phase on or off. Its outcome is what a
`read_committed` reader finds in the end: every committed change once and in order, nothing that was rolled back, and
tables that equal the source (`deploy/demo/fold.py`).
"""

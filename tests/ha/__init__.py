"""Takeover and failover on real servers: `python -m tests.ha takeover`, `python -m tests.ha failover`.

A takeover: two daemons, and one blow after the other to the active one (killed, frozen and woken later, cut off from
both networks and joined again), under load. A failover: PostgreSQL's primary is killed and its standby promoted. Either
way a `read_committed` reader must find every committed change once; how long it waits for the first new one is
measured.
"""

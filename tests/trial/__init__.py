"""The trial by fire: real servers, faults drawn from a seed, and clients whose histories a checker judges.

`make trial SECONDS=120 SEED=1`. Three Kafka brokers, PostgreSQL with a synchronous standby and two instances of the
daemon run on this machine. Clients write to several tables and note of each transaction whether it was committed, as
far as they know. Then everything that the topics hold is compared with the histories and with the tables.

`history.py`, `checker.py`, `faults.py` and `results.py` are pure, and tests/unit/trial plants each anomaly into
recorded topics. `world.py` has the servers, `clients.py` and `samples.py` what is noted, and `play.py` carries the
faults out. `entry.py` is the daemon's process with a clock that can jump and, if asked for, with a planted mistake
(`planted.py`).
"""

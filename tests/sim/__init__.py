"""A seeded, deterministic simulation of everything between PostgreSQL's tables and Kafka's log.

The real engine (`cdcd.core.engine`), with all that it is made of and both encoders, runs here between a model of
PostgreSQL and a model of Kafka. There is no clock, no thread, no network and no await: `world` draws from one random
number generator who moves next and what breaks, and `oracle` compares every step with what was promised (README,
"Guarantees"). A seed that fails, fails again:

    python -m tests.sim --seed 4711 --trace

- The server: `catalog`, `heap` and `database` are its tables; `workload`, `dml` and `ddl` its sessions, `requests` what
  strangers send; `wal`, `walsender` and `frames` its stream; `client` what it answers; `postgres` how it goes down.
- The daemon: `instance` is a process, `session` carries out the engine's actions, `asking` its questions about tables,
  `sink` the steps of `cdcd.adapters.kafka.transaction_state`. None of them decides anything.
- What was promised: `expected` is what each record must be, `oracle` where it must stand, `fold` what a consumer has of
  all of them, `complete` which tables that must be, `protected` which values no consumer may see.

`test_server` proves the server's model by a naive reader. `planted` holds bugs that must be found, which shows that
the rest would be.
"""

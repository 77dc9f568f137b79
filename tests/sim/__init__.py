"""A seeded, deterministic simulation of everything between PostgreSQL's WAL and Kafka's log.

The real `Assembler`, `Spool`, `Ledger`, `Feedback`, `Batches`, `Position` and `resume` run here between a model of
PostgreSQL (`workload`, `wal`, `walsender`, `postgres`) and a model of Kafka (`broker`), joined as
`cdcd.daemon.pipeline` and `cdcd.kafka.sink` join them (`instance`, `sink`). There is no clock, no thread, no network
and no await: `world` draws from one random number generator who moves next and what breaks, and `oracle` compares
every step with what was promised (README, "Guarantees"). A seed that fails, fails again:

    python -m tests.sim --seed 4711 --trace

`planted` holds bugs that must be found, which shows that the rest would be.
"""

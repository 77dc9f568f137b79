"""The demo (`python -m deploy.demo`), and what the tests share with it: workloads, and the check of the topics.

`Workload` writes to every kind of table in every kind of transaction; `compare` says whether the topics, folded,
equal the tables.
"""

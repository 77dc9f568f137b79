"""PostgreSQL 13 to 18 and a Kafka broker on this machine's loopback, for the demo, the tests and the bench.

`PostgresServer(18, folder)` and `KafkaBroker(folder)` are context managers; the first use of each fetches a pinned
build into the cache. They end when this process ends, in whatever way it does (process.py).
"""

from deploy.local.cache import LocalServerError, cache_folder
from deploy.local.kafka_broker import KafkaBroker
from deploy.local.maven import KAFKA_VERSION
from deploy.local.postgres_packages import POSTGRES_VERSIONS, client_program
from deploy.local.postgres_server import PostgresServer
from deploy.local.process import free_port

__all__ = [
    "KAFKA_VERSION",
    "POSTGRES_VERSIONS",
    "KafkaBroker",
    "LocalServerError",
    "PostgresServer",
    "cache_folder",
    "client_program",
    "free_port",
]

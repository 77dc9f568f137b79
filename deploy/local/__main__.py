"""`python -m deploy.local [PART …]`: fetch servers into the cache, so that later runs need no network.

A part is `kafka`, `clients` (psql and others) or a major version of PostgreSQL, such as 18. Without arguments, all
parts are fetched. This module needs only the standard library.
"""

import sys

from deploy.local.cache import LocalServerError, cache_folder
from deploy.local.kafka_broker import prepare_broker
from deploy.local.maven import KAFKA_VERSION, kafka_jars
from deploy.local.postgres_packages import POSTGRES_VERSIONS, client_program, postgres_installation
from deploy.local.programs import java


def fetch(part: str) -> None:
    """Fetch one part, and print its version or its folder."""
    if part == "clients":
        print(f"clients: {client_program('psql').parent}")
    elif part == "kafka":
        print(f"Kafka {KAFKA_VERSION}: {kafka_jars()}")
        print(f"Java: {java()}")
        prepare_broker()
    else:
        print(f"PostgreSQL {postgres_installation(int(part)).name}")


if __name__ == "__main__":
    try:
        for each in sys.argv[1:] or [*map(str, POSTGRES_VERSIONS), "clients", "kafka"]:
            fetch(each)
        print(f"cache: {cache_folder()}")
    except LocalServerError as error:
        sys.exit(str(error))

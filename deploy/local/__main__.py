"""`python -m deploy.local`: fetch every server into the cache, so that later runs need no network."""

from deploy.local.cache import cache_folder
from deploy.local.maven import KAFKA_VERSION, kafka_jars
from deploy.local.postgres_packages import POSTGRES_VERSIONS, client_program, postgres_installation
from deploy.local.programs import java

for version in POSTGRES_VERSIONS:
    print(f"PostgreSQL {postgres_installation(version).name}")
print(f"clients: {client_program('psql').parent}")
print(f"Kafka {KAFKA_VERSION}: {kafka_jars()}")
print(f"Java: {java()}")
print(f"cache: {cache_folder()}")

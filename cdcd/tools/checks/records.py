"""Whether the published tables have records in the chosen format. The encoders of `cdcd run` are asked themselves."""

from collections.abc import Collection

from cdcd.adapters.postgres.connection import Connection
from cdcd.core.errors import ConfigError, WithoutBinaryError
from cdcd.core.records.available import format_of
from cdcd.core.records.encoder import EncoderSettings
from cdcd.daemon.rules.described import described_tables


async def look_at_records(
    connection: Connection, oids: Collection[int], settings: EncoderSettings
) -> list[tuple[str, ConfigError]]:
    """Describe each table to an encoder, as the stream would. Nothing is registered and nothing is sent.

    Returns:
        Tables as `schema.table` with the error that would end `cdcd run` at their first record.

    Raises:
        TransientError, SourceError: PostgreSQL does not answer, or refuses.
    """
    found = await described_tables(connection, oids)
    refused: list[tuple[str, ConfigError]] = []
    for relation in found.relations:
        # One encoder each, because topics of two tables that collide are told by another check.
        encoder = format_of(settings).changes(settings, False, lambda _: None)
        try:
            encoder.define(relation, found.descriptions[relation.oid], found.types)
            encoder.unregistered(relation.oid)
        except ConfigError as error:
            refused.append((f"{relation.schema}.{relation.name}", error))
        except WithoutBinaryError:
            continue
    return refused

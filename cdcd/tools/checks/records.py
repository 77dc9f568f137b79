"""The check of records: whether records of the published tables can be made in the chosen format, and what the registry
reports.

It uses the encoders of `cdcd run`, and registers nothing.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.registry.client import registry_of
from cdcd.adapters.registry.glue import GlueRegistry
from cdcd.config.loading import Config
from cdcd.core.errors import ConfigError, WithoutBinaryError
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.json_registry.schemas import JSON_REGISTRY, KIND
from cdcd.core.records.protobuf.form import PROTOBUF
from cdcd.core.table_names import table_text
from cdcd.daemon.rules.tables import described_tables
from cdcd.telemetry.findings import Finding


async def look_at_records(
    connection: Connection, oids: Collection[int], settings: EncoderSettings
) -> list[tuple[str, ConfigError]]:
    """Describe each table to an encoder, as the stream would. Nothing is registered or sent.

    Returns:
        Tables as `schema.table` with the error that would end `cdcd run` at their first record.

    Raises:
        TransientError, SourceError: PostgreSQL does not answer, or refuses.
    """
    found = await described_tables(connection, oids)
    refused: list[tuple[str, ConfigError]] = []
    for relation in found.relations:
        # A separate encoder for each table, because another check reports colliding topics of two tables.
        encoder = record_stream(settings, False, lambda _: None)
        try:
            encoder.define(relation, found.descriptions[relation.oid], found.types)
            encoder.unregistered(relation.oid)
        except ConfigError as error:
            refused.append((table_text(relation.schema, relation.name), error))
        except WithoutBinaryError:
            continue
    return refused


SUBJECT = "schema registry"

_READ_WRITE = "READWRITE"
_KINDS: Final = {PROTOBUF: "PROTOBUF", JSON_REGISTRY: KIND}
"""The registry's type of schemas for each format that needs another type than AVRO."""


def examine_kinds(kinds: Sequence[str], wanted: str, *, url: str) -> list[Finding]:
    """Return findings about the schema types that the registry supports.

    `wanted` is the type that the pipeline writes.
    """
    if not kinds or wanted in kinds:
        return []
    return [
        Finding(
            "error",
            "registry.types",
            SUBJECT,
            f"{url} takes schemas of {', '.join(kinds)}, and the pipeline's are {wanted}",
            f"Use a registry that takes {wanted}, or another format.value.",
        )
    ]


def examine_registry(mode: str, subjects: int, *, url: str, registers: bool) -> list[Finding]:
    """Return findings about the registry's answers. `registers`: True if cdcd registers schemas."""
    if registers and mode not in ("", _READ_WRITE):
        return [
            Finding(
                "error",
                "registry.mode",
                SUBJECT,
                f"{url} is in mode {mode}, so that it takes no new schemas",
                f'PUT {url}/mode with {{"mode": "READWRITE"}}; or register the schemas by another way, and set '
                "registry.register_schemas: false.",
            )
        ]
    return [
        Finding(
            "ok", "registry.mode", SUBJECT, f"{url}: {subjects} subjects{f', mode {mode}' if mode else ''}"
        )
    ]


async def ask_registry(config: Config) -> tuple[Sequence[Finding], None]:
    """Return the registry's findings, if a format needs a registry. Raises what `Registry` raises."""
    if not config.needs_registry:
        return [], None
    registry = registry_of(config)
    if isinstance(registry, GlueRegistry):
        await asyncio.to_thread(registry.check)
        return [Finding("ok", "registry.mode", SUBJECT, f"{registry.url}: Glue's registry is there")], None
    subjects = await asyncio.to_thread(registry.subjects)
    mode = await asyncio.to_thread(registry.mode)
    kinds = await asyncio.to_thread(registry.kinds)
    wanted = _KINDS.get(config.format.value, "AVRO")
    return (
        [
            *examine_registry(mode, subjects, url=registry.url, registers=config.registry.register_schemas),
            *examine_kinds(kinds, wanted, url=registry.url),
        ],
        None,
    )

"""The corpus: configurations of connectors made after public ones, what `cdcd adopt` makes of each, and their share.

`python -m tests.unit.tools.adopt.corpus` writes verdicts.yaml, and prints what stands in the way by its number.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import yaml

from cdcd.adapters.postgres.publication import Publication, PublishedTable
from cdcd.config.loading import Config
from cdcd.core.errors import ConfigError
from cdcd.tools.adopt.adoption import Adoption, Database, adopt
from cdcd.tools.adopt.connect_api import of_server
from cdcd.tools.adopt.database import captured
from cdcd.tools.adopt.reach import KnownTable
from cdcd.tools.adopt.tables import Lists

_HERE: Final = Path(__file__).parent
CONNECTORS: Final = _HERE / "connectors.yaml"
VERDICTS: Final = _HERE / "verdicts.yaml"

_SHARED: Final = {
    "database.hostname": "db",
    "database.port": "5432",
    "database.user": "debezium",
    "database.password": "secret",
    "database.dbname": "app",
    "name": "connector",
}
_COLUMNS: Final = (
    "id",
    *("name", "username", "enabled", "email", "phone", "status", "total", "created_at", "updated_at"),
    *(
        "aggregatetype",
        "aggregateid",
        "aggregate_type",
        "aggregate_id",
        "type",
        "event_type",
        "topic",
        "payload",
    ),
    *("timestamp", "message_key", "partition_key", "topic_name", "request_id", "headers"),
    *("visit_date", "billing_date", "total_amount", "total_cost", "price"),
    *("org_id", "trace_id", "source", "content_type", "author", "operation", "txid"),
)
_TEXTS: Final = frozenset(_COLUMNS) - {
    *("id", "total", "created_at", "updated_at", "timestamp"),
    *("visit_date", "billing_date", "total_amount", "total_cost", "price"),
}
_NAMES: Final = ("customers", "orders", "products", "inventory", "outbox", "message", "signals", "heartbeat")
_EVENTS: Final = ("order", "payment")
"""The values that rows of an outbox have in the column that chooses the topic."""
_TABLES: Final = tuple(
    [
        (schema, name)
        for schema in ("public", "app", "app2", "inventory")
        for name in (*_NAMES, *[f"t{number}" for number in range(1, 22)])
    ]
)
"""The tables of the database that every connector of the corpus reads."""


def connectors() -> dict[str, dict[str, str]]:
    """The options of each connector, by its name."""
    found: dict[str, dict[str, str]] = yaml.safe_load(CONNECTORS.read_text(encoding="utf-8"))
    return {name: of_server({**_shared(name), **given}) for name, given in found.items()}


def _shared(name: str) -> Mapping[str, str]:
    return {} if name.startswith("server-") else _SHARED


def _look(
    options: Mapping[str, str],
    _config: Config,
    _missing: Sequence[str],
    lists: Lists,
    routing: Collection[str],
) -> Database:
    every = [
        PublishedTable(oid, schema, name, replica_identity="d", has_identity=True, has_primary_key=True)
        for oid, (schema, name) in enumerate(_TABLES, 16384)
    ]
    tables = tuple(captured(every, lists))
    # A connector runs with its tables: if it makes keys of a column, then that is the column of the key.
    extracted = {
        options[name.removesuffix("type") + "field"]
        for name, value in options.items()
        if value.endswith("ExtractField$Key")
    }
    known = [
        KnownTable(
            each.schema,
            each.name,
            (*_COLUMNS, f"{each.name}_id"),
            frozenset({f"{each.name}_id"} & extracted or {"id"}),
            _TEXTS,
            tuple([(column, _EVENTS) for column in routing]),
        )
        for each in tables
    ]
    publication = Publication(
        "p", all_tables=False, schemas=(), operations=("insert",), via_root=False, tables=tables
    )
    return Database(_TABLES, publication, tuple(known), tuple(every))


def adopted(options: Mapping[str, str]) -> Adoption:
    """What becomes of a connector whose database is the corpus's."""
    return adopt(
        options, {"kafka.bootstrap_servers": "kafka:9092"}, "cdcd.yaml", look=partial(_look, options)
    )


def missing(options: Mapping[str, str]) -> list[str]:
    """The sentences on what stands in the way of the connector's takeover; []: nothing does."""
    try:
        found = adopted(options)
    except ConfigError as error:
        return [error.message]
    return [
        f"{finding.name}: {finding.verdict.why.partition('. ')[0].rstrip('.')}."
        for finding in found.findings
        if finding.name in found.blocking
    ]


def verdicts() -> dict[str, list[str]]:
    """What is missing for each connector, by its name."""
    return {name: missing(options) for name, options in connectors().items()}


def main() -> None:
    """Write verdicts.yaml, and print the share of connectors and what stands in the way of the others."""
    found = verdicts()
    VERDICTS.write_text(
        yaml.safe_dump(found, sort_keys=False, width=1000, allow_unicode=True), encoding="utf-8"
    )
    print(share(found))
    for sentence, count in Counter([each for some in found.values() for each in set(some)]).most_common():
        print(f"{count:3}  {sentence}")


def share(found: Mapping[str, Sequence[str]]) -> str:
    whole = len([name for name, sentences in found.items() if not sentences])
    return f"{whole} of {len(found)} connectors are adopted without --accept: {whole / len(found):.1%}"

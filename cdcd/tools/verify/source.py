"""Rows of the source at a shared snapshot, as the encoder writes them, read within a rate limit."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

from cdcd.adapters.postgres.quoting import identifier
from cdcd.adapters.postgres.shared_snapshot import SharedSnapshot, SharedTable
from cdcd.adapters.postgres.snapshot_queries import Equality
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.adapters.postgres.table_chunks import Rate, TableChunks
from cdcd.config.loading import Config
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.copytext import split_row, unescape
from cdcd.core.catalog.field_names import KEY as FIELDS
from cdcd.core.catalog.relations import TableDescription, TypeDescription, key_columns
from cdcd.core.catalog.table_rules import TableRules, moves
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.errors import CdcdError
from cdcd.core.records.available import record_stream
from cdcd.core.records.debezium_json.converters import converter_for
from cdcd.core.records.encoder import SnapshotPosition
from cdcd.core.records.schemas import TableForm, table_form
from cdcd.core.records.unwritable import UnwritableError
from cdcd.core.snapshot.reading import SourceTable
from cdcd.core.snapshot.table_task import Pages, Part, gaps
from cdcd.daemon.readers import readers_of
from cdcd.daemon.settings import encoder_settings
from cdcd.tools.verify.comparing import SourceRow
from cdcd.tools.verify.record_parsing import RowForm, after_of

CHUNK_BYTES: Final = 1 << 20
"""Bytes of a table on disk that are read at a time."""

ROWS_AT_ONCE: Final = 2000

Place = tuple[int, str, Equality]
"""A key column: its index in a row, its name, and its comparison."""

_MARK: Final = "true"


RUN_PAGES: Final = 16
"""Number of adjacent pages in a run of a sample."""


def left_out(pages: int, share: float, dice: Random) -> Pages:
    """Return the pages that a sample of a table with `pages` pages leaves out; it has at least one run of pages."""
    runs = -(-pages // RUN_PAGES)
    drawn = set(dice.sample(range(runs), min(runs, max(1, round(runs * share))))) if runs else set()
    return gaps(tuple((run * RUN_PAGES, min(pages, (run + 1) * RUN_PAGES)) for run in sorted(drawn)), pages)


class Forms:
    """Table descriptions as the daemon makes them, with the modes and the protected columns of its configuration."""

    def __init__(self, config: Config, shared: SharedSnapshot, bindings: Bindings | None = None) -> None:
        self._shared = shared
        self._names = config.topic_names()
        settings = encoder_settings(
            config, shared.database, bindings=bindings, money_digits=shared.money_digits
        )
        self.modes = settings.modes
        self.protections = settings.protections
        self._chosen_keys = settings.chosen_keys
        self._chosen_partitions = settings.chosen_partitions
        self._chosen_fields = settings.chosen_fields
        self._computed = TableRules(FIELDS, [(rule.table, rule) for rule in settings.computed_rules])

    def description(self, table: SharedTable) -> TableDescription:
        """Return the catalog's description of the table, with the chosen key."""
        return self._chosen_keys.applied(table.source.relation, table.description)

    def form(self, table: SharedTable) -> TableForm:
        """Return the description of the table at the snapshot."""
        relation, description = table.source.relation, self.description(table)
        topic = self._names.table(relation.schema, relation.name)
        types = self._shared.types
        numbered = replace(description, numbers=table.source.numbers)
        rules = self.protections.of_columns(relation, key_columns(relation, description), types, numbered)
        moving = moves(self._chosen_partitions.columns(relation, numbered), relation, description)
        form = table_form(relation, description, types, topic, rules, modes=self.modes, moves=moving)
        computed = self._computed.only(relation, "names the table's fields")
        if computed is not None:
            form = replace(form, computed=tuple([name for name, _ in computed.fields]))
        return form.with_fields(relation, self._chosen_fields.of_table(relation, numbered))


class ReadersAtSnapshot:
    """One session at the snapshot for each role that reads tables (`postgres.readers`). The caller owes `close`."""

    def __init__(self, config: Config, shared: SharedSnapshot, application_name: str) -> None:
        self._readers = readers_of(config)
        self._snapshot = shared.name
        self._application_name = application_name
        self._connect_timeout_s = config.postgres.connect_timeout_s
        self._open: dict[int | None, SnapshotReader] = {}

    async def of(self, table: SourceTable) -> SnapshotReader:
        """Return the session that reads a table.

        Raises:
            TransientError: the server does not answer, or the snapshot has ended.
            SourceError, ConfigError: PostgreSQL refuses the role.
        """
        access = self._readers.of(*table.place)
        reader = self._open.get(access.place)
        if reader is None:
            try:
                reader = await SnapshotReader.open(
                    access.dsn(),
                    application_name=self._application_name,
                    connect_timeout_s=self._connect_timeout_s,
                    trusted=access.trusted,
                )
            except CdcdError as error:
                raise access.explained(error) from error
            self._open[access.place] = reader
            await reader.import_snapshot(self._snapshot)
        return reader

    def close(self) -> None:
        """Close all sessions."""
        for reader in self._open.values():
            reader.close()


class SourceRows:
    """Reader of tables at the snapshot. The caller owes `close`."""

    def __init__(
        self,
        config: Config,
        shared: SharedSnapshot,
        readers: ReadersAtSnapshot,
        rate: Rate,
        bindings: Bindings | None = None,
    ) -> None:
        self._config = config
        self._shared = shared
        self._readers = readers
        self._rate = rate
        self._forms = Forms(config, shared, bindings)
        settings = encoder_settings(
            config, shared.database, bindings=bindings, money_digits=shared.money_digits
        )
        settings = replace(
            settings,
            # Only rows are compared, without envelopes and added fields.
            field_rules=tuple([replace(rule, constants=()) for rule in settings.field_rules]),
            computed_rules=(),
            schemas_topic=None,
            key_format="json",
            value_format="json",
        )
        self._encoder = record_stream(settings)

    def close(self) -> None:
        self._readers.close()

    def form(self, table: SharedTable) -> TableForm:
        """Return the description of the table at the snapshot."""
        return self._forms.form(table)

    def defaults(self, table: SharedTable) -> list[bytes | None]:
        """Return for each column the value of rows that are older than the column, as in a record; None: NULL."""
        missing = {column.name: column.missing for column in table.description.columns}
        found: list[bytes | None] = []
        for column in table.source.relation.columns:
            text = missing.get(column.name)
            modes = self._forms.modes
            converter = converter_for(column.type_oid, column.type_modifier, self._shared.types, modes)
            try:
                found.append(None if text is None else to_bytes(converter.json(wire(text))))
            except UnwritableError:
                # Records also have null for such a value.
                found.append(None)
        return found

    async def rows(
        self, table: SharedTable, skipped: Callable[[Part], Pages] = lambda _: (), *, found: bool = False
    ) -> AsyncGenerator[list[SourceRow], None]:
        """Yield all rows of the table.

        Args:
            skipped: returns the pages of a part that are not read.
            found: True to add the SQL condition of each row.

        Raises:
            SourceError: the table may not be read.
            TransientError: the connection or the snapshot is lost, or the table was altered, truncated or dropped.
        """
        relation = table.source.relation
        numbered = replace(table.description, numbers=table.source.numbers)
        self._encoder.define(relation, numbered, self._shared.types)
        key = key_columns(relation, self._forms.description(table))
        places = [
            (at, column.name, equality(column.type_oid, self._shared.types))
            for at, column in enumerate(relation.columns)
            if found and column.name in key
        ]
        form = RowForm()
        for each in table.source.parts:
            part = replace(each.part, done=skipped(each.part))
            async for lines in self._lines(table, each.sql_name, part):
                for begin in range(0, len(lines), ROWS_AT_ONCE):
                    yield self._encoded(relation.oid, lines[begin : begin + ROWS_AT_ONCE], places, form)

    async def _lines(self, table: SharedTable, sql_name: str, part: Part) -> AsyncIterator[list[bytes]]:
        reader = await self._readers.of(table.source)
        chunks = TableChunks(reader, table.source, sql_name, part, CHUNK_BYTES)
        while (lines := await chunks.next()) is not None:
            yield lines
            await self._rate.passed(sum(map(len, lines)))

    def _encoded(self, oid: int, lines: list[bytes], places: list[Place], form: RowForm) -> list[SourceRow]:
        position = self._shared.position
        place = SnapshotPosition(position, position - 1, _MARK, _MARK, _MARK)
        records: list[Any] = []
        self._encoder.encode_rows(oid, lines, place, 0, records, set())
        found = []
        for line, (_, key, value, _) in zip(lines, records, strict=True):
            values = after_of(value, form).values
            found.append(SourceRow(key, values, _condition(line, places) if places else ""))
        return found


def _condition(line: bytes, places: list[Place]) -> str:
    """Return the SQL condition that selects the row of this line of COPY text."""
    fields = split_row(line)
    return " AND ".join(
        f"{how.left(name)} = {how.right(unescape(fields[at]).decode('utf-8', 'surrogateescape'))}"
        for at, name, how in places
    )


def equality(oid: int, types: Mapping[int, TypeDescription]) -> Equality:
    """Return the comparison of a key column of this type, which runs no code of the table's owner."""
    if oid in BUILTIN_TYPES:
        return Equality()
    description = types.get(oid)
    while description is not None and description.kind == "d":
        description = BUILTIN_TYPES.get(description.base_oid) or types.get(description.base_oid)
    if description is None or description.namespace != "pg_catalog":
        return Equality(by_text=True)
    return Equality(f"pg_catalog.{identifier(description.name)}")

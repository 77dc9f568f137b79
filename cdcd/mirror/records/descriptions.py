"""The schemas topic as a job knows it: every form that each table had, by the id that changes name.

A description is in the Kafka transaction of the first change that names it; yet a reader may see the change a moment
earlier, since a transaction's markers reach partitions one after the other. So an id that is not known is waited for a
little before it is said to be unknown.
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final

from pyspark.sql import SparkSession

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.errors import SinkError, SourceError
from cdcd.core.records.avro.form import head as schema_head
from cdcd.core.records.gaps import Aside, is_gap
from cdcd.core.records.schema_registrations import Registration, read_registration
from cdcd.core.records.schemas import TableForm, read_form
from cdcd.core.table_names import table_text
from cdcd.mirror.kafka import KafkaSource, LooksUpEnds
from cdcd.mirror.records.avro import AvroSchemas, namespace, read_schema
from cdcd.mirror.records.mode_types import UnreadableFormError
from cdcd.mirror.records.readable import check_readable
from cdcd.mirror.records.rule import Rule
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.records.types import rules, table_schema
from cdcd.mirror.records.values import ValueForm
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, way_on

PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.2
AVRO: Final = "AVRO"
"""The registry's name of the kind of schemas in Avro."""


@dataclass(slots=True)
class _Words:
    """The labels of a column's enum: `now`, by their oids, and the oid of each word that one has or had."""

    now: dict[int, str]
    oids: dict[str, int]


@dataclass(slots=True)
class _Numbers:
    """The numbers of a relation's columns: in the last description, in former ones, and in a former one and a later one
    but not in one between them."""

    last: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)

    def take(self, columns: Collection[ColumnForm]) -> None:
        """PostgreSQL gives no number twice. So a column that returns was dropped and added again, and the daemon, which
        was behind, numbered the former one like the later one. Or the publication left it out meanwhile."""
        numbers = {column.id for column in columns if column.id is not None}
        self.returned |= numbers & self.gone
        if len(numbers) == len(columns):
            self.gone |= self.last - numbers
        self.last = numbers


@dataclass(frozen=True, slots=True)
class Form:
    """A form of a table: in Spark's types, how its values come to be of them, and how its records are written."""

    schema: TableSchema
    rules: dict[str, Rule]
    values: ValueForm = field(default_factory=ValueForm)


class Descriptions:
    """The forms in `topic`. `refresh` reads what is new; the others only look at what was read.

    Args:
        variant: json columns are VARIANT.
        mirrored: columns have the names that the mirror gives them (`mirrored_names`).
        by_header: records come from a log, which reads the header `cdcd.change`.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: KafkaSource,
        admin: LooksUpEnds,
        topic: str,
        *,
        variant: bool = False,
        mirrored: bool = False,
        by_header: bool = False,
    ) -> None:
        self.problems: dict[str, str] = {}
        self.aside: dict[int, Aside] = {}
        """Tables that the daemon has set aside, by oid."""
        self.returned: dict[int, Aside] = {}
        """The last time that tables were set aside, by oid of those that have come back since."""
        self._spark = spark
        self._source = source
        self._admin = admin
        self._topic = topic
        self._variant = variant
        self._mirrored = mirrored
        self._by_header = by_header
        self._avro: dict[str, AvroSchemas] = {}
        """By the namespace of the schemas (`avro.namespace`)."""
        self._next: dict[int, int] = {}
        self._forms: dict[str, TableForm] = {}
        self._by_topic: dict[str, str] = {}
        self._numbers: dict[int | None, _Numbers] = {}
        """By oid of the relation."""
        self._tables: dict[int, list[str]] = {}
        """By oid of the relation, the names (`schema.table`) under which it was described, in their order."""
        self._lowest: dict[tuple[int | None, int | None], int] = {}
        """By oid of the relation and `rewritten`: the lowest `last_id` of the descriptions."""
        self._words: dict[tuple[str, int | None, int | str], _Words] = {}
        """By topic, oid of the relation and column."""
        self._unknown: set[str] = set()
        # Tables are worked on in several threads.
        self._refreshing = Lock()

    def refresh(self) -> None:
        """Read what came since.

        Raises:
            SinkError: there is no such topic, or Kafka refuses.
            SinkUnavailableError: Kafka does not answer.
        """
        ends = self._admin.ends([self._topic]).get(self._topic)
        if ends is None:
            raise SinkError(
                f"There is no topic {self._topic}, which has the descriptions of the tables.",
                hint="Start the daemon, which writes it. If the daemon runs, compare topics.schemas and topics.prefix "
                "in both configurations.",
            )
        if all(self._next.get(partition, 0) >= end for partition, end in ends.items()):
            return
        records = self._source.read(self._spark, self._topic, self._next, ends)
        for record in records.select("partition", "offset", "value").orderBy("partition", "offset").collect():
            where = f"{self._topic}[{record['partition']}]@{record['offset']}"
            self._take(bytes(record["value"] or b""), where)
        self._next = dict(ends)

    def _take(self, value: bytes, where: str) -> None:
        try:
            fingerprint, form = read_form(value)
        except ValueError as error:
            if is_gap(value) or self._take_aside(value, where):
                return
            registration = read_registration(value)
            if registration is None:
                self.problems[where] = str(error)
            elif self._by_header and registration.kind == AVRO:
                self._take_schema(registration)
            elif not (self._by_header and registration.text):
                raise SinkError(
                    "The topics of this pipeline have records whose schemas are in a registry (Avro, Protobuf or "
                    f"json_registry), as {where} says, and the daemon writes no header cdcd.change for the mirror.",
                    hint="Set format.change_header: true in the daemon's configuration, with a topics.prefix of its "
                    "own, and mirror those topics with change_log: fold. Or set format.value: json (and format.key).",
                ) from None
            return
        form = self._forms[fingerprint] = self._numbered(fingerprint, form)
        self._numbers.setdefault(form.oid, _Numbers()).take(form.columns)
        if form.oid is not None:
            names, name = self._tables.setdefault(form.oid, []), table_text(form.schema, form.table)
            if name not in names:
                names.append(name)
        if form.last_id is not None:
            seen = form.oid, form.rewritten
            self._lowest[seen] = min(form.last_id, self._lowest.get(seen, form.last_id))
        for column in form.columns:
            if column.labels:
                self._learn(form, column)
        self._by_topic.pop(form.topic, None)
        self._by_topic[form.topic] = fingerprint

    def _take_schema(self, registration: Registration) -> None:
        """Take a schema of a table's keys or values. Schemas of other records are none."""
        try:
            schema = read_schema(registration.text)
        except ValueError:
            return
        of_topic = self._avro.setdefault(schema.name.rpartition(".")[0], AvroSchemas())
        of_topic.take(schema_head(registration.id), schema)

    def _take_aside(self, value: bytes, where: str) -> bool:
        """Take a record of a table that is set aside; False if the record is another one."""
        try:
            found = Aside.read(value)
        except ValueError as error:
            # The newest record that is readable counts.
            self.problems[where] = str(error)
            return True
        if found is None:
            return False
        if found.until is None:
            self.aside[found.oid] = found
        else:
            self.aside.pop(found.oid, None)
            self.returned[found.oid] = found
        return True

    def _learn(self, form: TableForm, column: ColumnForm) -> None:
        """A label keeps its oid when it is renamed, and descriptions come in the order in which labels change."""
        known = self._words.setdefault(_place(form, column), _Words({}, {}))
        labels = dict(column.labels)
        known.now = labels
        known.oids |= {word: oid for oid, word in column.labels}

    def _numbered(self, fingerprint: str, form: TableForm) -> TableForm:
        """The description with the numbers that it lacks, of columns that other descriptions of the table know.

        Columns are in the order of their numbers. If those that were found are not, they are of other columns.
        """
        others = [
            other
            for known, other in self._forms.items()
            if known == fingerprint or (other.topic == form.topic and other.oid in (form.oid, None))
        ]
        taken = {column.id for column in form.columns}

        def numbered(column: ColumnForm) -> ColumnForm:
            ids = {
                each.id
                for other in others
                for each in other.columns
                if (each.name, each.type_oid) == (column.name, column.type_oid) and each.id not in taken
            }
            return replace(column, id=ids.pop()) if column.id is None and len(ids) == 1 else column

        found = tuple([numbered(column) for column in form.columns])
        ids = [column.id for column in found if column.id is not None]
        return replace(form, columns=found) if ids == sorted(ids) else form

    def topics(self) -> Collection[str]:
        """The topics of all tables that are described."""
        return self._by_topic.keys()

    def table(self, topic: str) -> str | None:
        """`schema.table` of a topic."""
        fingerprint = self._by_topic.get(topic)
        return (
            None
            if fingerprint is None
            else table_text(self._forms[fingerprint].schema, self._forms[fingerprint].table)
        )

    def former_name(self, schema: TableSchema) -> str | None:
        """The name (`schema.table`) that the relation had before it was described under its name for the first time.

        None: it had no other name. Its rows from before the rename are in the topic of the former name.
        """
        names = [] if schema.oid is None else self._tables.get(schema.oid, [])
        at = names.index(schema.table) if schema.table in names else 0
        return names[at - 1] if at else None

    def oid(self, topic: str) -> int | None:
        """The oid of the relation that was described last for a topic. None: it is not known."""
        fingerprint = self._by_topic.get(topic)
        return None if fingerprint is None else self._forms[fingerprint].oid

    def topic(self, table: str) -> str | None:
        """The topic of `schema.table`; the one that was described last, if it was renamed in the configuration."""
        found = [topic for topic in self._by_topic if self.table(topic) == table]
        return found[-1] if found else None

    def topic_of(self, table: str) -> str:
        """Read what is new, and return the topic of `schema.table`. SourceError: the table is not described."""
        self.refresh()
        found = self.topic(table)
        if found is None:
            raise SourceError(
                f"No description of {table} is known in {self._topic}.",
                hint="The daemon describes a table before its first change; the name is schema.table.",
            )
        return found

    def newest(self, topic: str) -> Form:
        """The form that was described last. KeyError: no form is known."""
        return self._form(self._by_topic[topic])

    def get(self, topic: str, schema_id: str) -> Form | None:
        """A form of the table with this topic."""
        form = self._forms.get(schema_id)
        return None if form is None or form.topic != topic else self._form(schema_id)

    def all(self, topic: str) -> dict[str, Form | None]:
        """Every form that the table had. None: one that has words of labels which mean other labels by now."""
        found: dict[str, Form | None] = {}
        for schema_id, form in self._forms.items():
            if form.topic == topic:
                try:
                    found[schema_id] = self._form(schema_id)
                except IncompatibleSchemaError:
                    found[schema_id] = None
        return found

    def known(self, topic: str, ids: Collection[str]) -> dict[str, Form]:
        """Those of `ids` that are described."""
        return dict(self._known(topic, ids))

    def find(self, topic: str, ids: Collection[str]) -> dict[str, Form]:
        """Those of `ids` that are described, after having waited a little, once, for the others."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = dict(self._known(topic, ids))
            missing = set(ids) - found.keys() - self._unknown
            if not missing:
                return found
            if time.monotonic() > deadline:
                self._unknown |= missing
                return found
            self.wait_for_more()
            time.sleep(_PAUSE_S)

    def wait_for_more(self) -> None:
        """Read what came since, one thread at a time."""
        with self._refreshing:
            self.refresh()

    def _values(self, form: TableForm) -> ValueForm:
        if form.change_header != "avro":
            return ValueForm(form.change_header, form.flattened)
        avro = self._avro.setdefault(namespace(form.topic), AvroSchemas())
        return ValueForm("avro", form.flattened, avro, tuple([column.name for column in form.columns]))

    def _known(self, topic: str, ids: Collection[str]) -> Iterator[tuple[str, Form]]:
        for schema_id in ids:
            form = self.get(topic, schema_id)
            if form is not None:
                yield schema_id, form

    def _form(self, schema_id: str) -> Form:
        form = self._forms[schema_id]
        columns, former = [], {}
        for column in form.columns:
            words = self._words.get(_place(form, column))
            if words is not None:
                _check_words(form, column, words)
                former[column.name] = {
                    word: words.now[oid]
                    for word, oid in words.oids.items()
                    if oid in words.now and word not in words.now.values()
                }
                columns.append(replace(column, labels=tuple(words.now.items())))
            else:
                columns.append(column)
        lowest = self._lowest.get((form.oid, form.rewritten), form.last_id)
        form = replace(form, columns=tuple(columns), last_id=lowest)
        check_readable(form, self._forms.values(), by_header=self._by_header)
        try:
            schema = table_schema(schema_id, form, variant=self._variant, mirrored=self._mirrored)
            if returned := self._numbers[form.oid].returned:
                found = [
                    replace(each, default_lost=True) if each.id in returned else each
                    for each in schema.columns
                ]
                schema = replace(schema, columns=tuple(found))
            by_name = rules(form, variant=self._variant, words=former, mirrored=self._mirrored)
            return Form(schema, by_name, self._values(form))
        except UnreadableFormError as error:
            what, hint = error.args
            raise SourceError(f"{form.schema}.{form.table}: {what}.", hint=hint) from None
        except ValueError as error:
            raise SourceError(
                f"{form.schema}.{form.table}: {error}.",
                hint="The daemon that wrote the description is newer. Upgrade the mirror to its version.",
            ) from None


def _place(form: TableForm, column: ColumnForm) -> tuple[str, int | None, int | str]:
    return form.topic, form.oid, column.name if column.id is None else column.id


def _check_words(form: TableForm, column: ColumnForm, words: _Words) -> None:
    """That no word of this description is another label's by now: a record with it may be from before or after."""
    labels = dict(column.labels)
    used = [word for oid, word in words.now.items() if word in labels.values() and labels.get(oid) != word]
    if used:
        table = table_text(form.schema, form.table)
        raise IncompatibleSchemaError(
            table,
            f"{', '.join(map(repr, used))} is now the name of another label of {column.type}, so earlier values of "
            f"column {column.name} are not known.",
            f"{way_on(table)} Do so when the daemon is not behind.",
        )

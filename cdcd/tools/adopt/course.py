"""A connector's transforms in their order, and what is known of the records between two of them.

Kafka Connect gives each record to the transforms in the order of `transforms`; a predicate says which records a
transform is applied to (`TransformationStage`). What a transform does depends on those before it: before
ExtractNewRecordState a value is Debezium's envelope, after it the row; after a router a topic has another name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.topic_templates import DEFAULT
from cdcd.tools.adopt.reach import EVERYWHERE, Known, KnownTable, Reach, compiled, reached
from cdcd.tools.adopt.references import References, has_placeholder
from cdcd.tools.adopt.topic_course import TopicCourse

CONNECT: Final = "org.apache.kafka.connect.transforms."
DEBEZIUM: Final = "io.debezium.transforms."
"""What the classes of Kafka Connect's and of Debezium's transforms begin with, in lower case."""

_PREDICATES: Final = f"{CONNECT}predicates."
TOPIC_MATCHES: Final = f"{_PREDICATES}topicnamematches"
TOMBSTONES: Final = f"{_PREDICATES}recordistombstone"
HEADERS: Final = f"{_PREDICATES}hasheaderkey"


class RefusedError(ValueError):
    """No key of cdcd's has the effect of a transform. The text says why, and what to do instead.

    Attributes:
        draft: dotted keys of cdcd's configuration that a person completes.
    """

    def __init__(self, why: str, draft: Mapping[str, object] | None = None) -> None:
        super().__init__(why)
        self.draft = draft or {}


class OpenError(ValueError):
    """A value stands elsewhere, so that nothing can be said."""


@dataclass(frozen=True, slots=True)
class Transform:
    """One of the transforms.

    Attributes:
        type: the class, in lower case; "": the connector names none.
        options: without what the transform's alias begins them with.
    """

    alias: str
    type: str
    options: Mapping[str, str]

    def text(self, name: str, default: str = "") -> str:
        """An option. OpenError: a config provider has it."""
        value = self.options.get(name, "").strip() or default
        if has_placeholder(value):
            raise OpenError(
                f"A config provider of the worker has the value of transforms.{self.alias}.{name}."
            )
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """An option that is a list."""
        return tuple([each.strip() for each in self.text(name).split(",") if each.strip()])

    def flag(self, name: str, *, default: bool) -> bool:
        return self.text(name, str(default)).lower() == "true"

    @property
    def is_negated(self) -> bool:
        return self.flag("negate", default=False)


@dataclass(frozen=True, slots=True)
class Renamed:
    """What the name of a field means behind a transform that has renamed or left out fields.

    Attributes:
        column: None: rows have no field of this name any more.
        patterns: the tables in which that is so.
    """

    column: str | None
    patterns: tuple[str, ...]


@dataclass(slots=True)
class Course:
    """What earlier transforms have made of the records.

    Attributes:
        known: the captured tables; None: the database was not asked.
        has_schemas: records have Connect's schemas, whose names follow the topics.
        flattening: the transform that has made rows of envelopes.
        passed_over: aliases of transforms without a counterpart, so that what follows them is judged without them.
        rerouted: alias of the transform behind which topics are not those of whole tables any more; "": there is none.
        renamed: fields whose names are no longer those of their columns.
        inserted: names of fields that transforms have added to rows.
        claims: patterns that a key of cdcd's has already, each with the alias it is from.
    """

    options: Mapping[str, str]
    transforms: tuple[Transform, ...]
    topics: TopicCourse
    known: Known
    references: References
    has_schemas: bool
    flattening: Transform | None = None
    passed_over: list[str] = field(default_factory=list)
    rerouted: str = ""
    renamed: dict[str, Renamed] = field(default_factory=dict)
    inserted: set[str] = field(default_factory=set)
    claims: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """What the topics of tables begin with. OpenError: a config provider has it."""
        if has_placeholder(self.topics.prefix):
            raise OpenError("A config provider of the worker has the value of topic.prefix.")
        return self.topics.prefix

    def predicate(self, transform: Transform) -> tuple[str, Transform] | None:
        """The class of a transform's predicate, in lower case, with its options; None: it has none.

        RefusedError: the connector does not describe it.
        """
        alias = transform.text("predicate")
        if not alias:
            return None
        begin = f"predicates.{alias}."
        options = {
            name.removeprefix(begin): value for name, value in self.options.items() if name.startswith(begin)
        }
        found = Transform(alias, options.get("type", "").strip().lower(), options)
        if not found.type:
            raise RefusedError(
                f"Its predicate {alias} has no {begin}type. Correct the connector, and run this again."
            )
        return found.type, found

    def reach(self, transform: Transform, *, skips_tombstones: bool) -> Reach:
        """The tables whose records the transform is applied to.

        Args:
            skips_tombstones: the transform does nothing to a record without a value.

        Raises:
            RefusedError: the predicate chooses by something else than tables.
            UndecidedError, UnreadableError: as `reached`.
        """
        found = self.predicate(transform)
        if found is None:
            return EVERYWHERE
        kind, predicate = found
        if kind == TOPIC_MATCHES:
            return self.reached(predicate.text("pattern"), negated=transform.is_negated)
        if kind == TOMBSTONES and skips_tombstones:
            return EVERYWHERE if transform.is_negated else Reach(())
        raise RefusedError(
            f"Its predicate {predicate.alias} ({kind.rpartition('.')[2]}) chooses single records, and cdcd has such "
            "rules for tables only. Do the work of the transform in a job that reads the topics, and accept this "
            "option."
        )

    def reached(self, expression: str, *, negated: bool = False) -> Reach:
        """The tables whose topics, as they are by now, match. RefusedError: that is not known."""
        if self.rerouted:
            raise RefusedError(
                f"It chooses records by their topics, and behind transform {self.rerouted} they cannot be told. Write "
                "the tables that are meant into cdcd.yaml by hand, and accept this option."
            )
        is_own = self.topics.template == DEFAULT
        topic_of = None if is_own else self.topics.topic_of
        return reached(expression, self.prefix, self.known, negated=negated, topic_of=topic_of)

    def accepts(self, transform: Transform) -> Callable[[str], bool]:
        """Whether the transform is applied to a record of a topic, which is no tombstone."""
        found = self.predicate(transform)
        if found is None or found[0] == TOMBSTONES:
            return lambda _topic: True
        regex, negated = compiled(found[1].text("pattern")), transform.is_negated
        return lambda topic: (regex.fullmatch(topic) is not None) != negated

    def claim(self, key: str, patterns: tuple[str, ...], alias: str, *, merges: bool = False) -> None:
        """Take the patterns for a key of which a table has one rule at most. RefusedError: a table would have two.

        Args:
            merges: what two transforms say of one pattern becomes one rule.
        """
        taken = self.claims.setdefault(key, {})
        for pattern in patterns:
            for other, holder in taken.items():
                if self._overlap(pattern, other) and not (merges and pattern == other):
                    raise RefusedError(
                        f"A table has one rule in {key} at most, and transform {holder} has made one already. Write "
                        "both into one rule by hand, and accept this option."
                    )
        taken |= dict.fromkeys(patterns, alias)

    def _overlap(self, one: str, other: str) -> bool:
        if self.known is not None:
            return bool(set(Reach((one,)).tables(self.known)) & set(Reach((other,)).tables(self.known)))
        first, second = parse_pattern(one), parse_pattern(other)
        return one == other or not (first.is_literal and second.is_literal)

    def refuse_missing(self, columns: tuple[str, ...], reach: Reach) -> None:
        """RefusedError: a table that is meant has not all of the columns."""
        for table in reach.tables(self.known):
            if lacking := [each for each in columns if each not in table.columns]:
                raise RefusedError(
                    f"Table {table.qualified} has no column {lacking[0]}, and cdcd refuses such a rule. Write the "
                    "rule for the tables that have the column, and accept this option."
                )

    def in_keys(self, column: str, reach: Reach) -> list[KnownTable]:
        """The tables that are meant in which the column is a part of the key."""
        return [each for each in reach.tables(self.known) if column in each.key]

"""A connector's transforms in their order, and what is known of the records and of the topics' names between two of
them.

A topic is followed in two ways. If the database's tables are known, each table's topic is renamed as Java would do it.
Besides, the first transform is asked what it makes of a schema and a table with any names: if its expression can tell
nothing of the two names but where they begin and end, the answer is a template for every table (`topics.name`). Without
such a template, the tables of today are named one by one (`topics.names`).

Kafka Connect gives each record to the transforms in the order of `transforms`; a predicate says which records a
transform is applied to (`TransformationStage`). What a transform does depends on those before it: before
ExtractNewRecordState a value is Debezium's envelope, after it the row; after a router a topic has another name.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cdcd.core.catalog import routing
from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.renaming import Router, check_expression, check_replacement, compiled
from cdcd.core.catalog.routing import DEFAULT, TopicNames, collisions
from cdcd.core.catalog.sharing import SharedTopic
from cdcd.core.errors import CdcdError
from cdcd.tools.adopt.reach import (
    EVERYWHERE,
    Known,
    KnownTable,
    Reach,
    UndecidedError,
    own_topic,
    reached,
)
from cdcd.tools.adopt.references import References, has_placeholder
from cdcd.tools.adopt.tables import Table, pattern_of_table

_SCHEMA: Final = "\ue000"
_TABLE: Final = "\ue001"

_FIXED: Final = re.compile(r"\\[^A-Za-z0-9]|[A-Za-z0-9_-]|\.(?![*+?{])", re.ASCII)
_GROUP: Final = re.compile(r"\((?:\?:|\?P?<[A-Za-z][A-Za-z0-9]*>)?|\)(?![*+?{])")
_RUN: Final = re.compile(r"(?:\.|\[\^\\?\.\])[*+](?![*+?{])")
_POINT: Final = re.compile(r"\\\.(?![*+?{])")

Accepts = Callable[[str], bool]
"""Whether a transform is applied to a record of a topic."""


class UnnamedError(ValueError):
    """No key of cdcd's gives the topics these names. The text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class TopicCourse:
    """The topics after some transforms.

    Attributes:
        stages: the transforms so far: whether each is applied to a topic, and what it makes of it.
        template: what it makes of any schema and table; None: that depends on their names.
        rules: the same transforms as rules of `topics.rename`; None: a predicate selects records for one of them, or
            comparing names with an expression could take long.
        listed: the captured tables if the connector's list names each of them; None: it does not.
    """

    prefix: str
    known: Known
    stages: tuple[tuple[Accepts, Router], ...] = ()
    template: str | None = routing.DEFAULT
    rules: tuple[Mapping[str, str], ...] | None = ()
    listed: tuple[Table, ...] | None = None

    def routed(self, router: Router, accepts: Accepts, *, is_everywhere: bool) -> "TopicCourse":
        """The topics after one more transform."""
        template = None
        if is_everywhere and not self.stages:
            template = _template(router, self.prefix)
        rule = _rule(router) if is_everywhere else None
        rules = None if rule is None or self.rules is None else (*self.rules, rule)
        return replace(self, stages=(*self.stages, (accepts, router)), template=template, rules=rules)

    def final(self, topic: str) -> str:
        """Where records of a topic go in the end. UnreadableError: Java would refuse a replacement."""
        for accepts, router in self.stages:
            if accepts(topic):
                topic = router.routed(topic)
        return topic

    def topic_of(self, schema: str, table: str) -> str:
        return self.final(own_topic(self.prefix)(schema, table))

    @property
    def tables(self) -> tuple[Table, ...] | None:
        """Schema and name of each captured table; None: the database was not asked, and no list names the tables."""
        return self.listed if self.known is None else tuple([(each.schema, each.name) for each in self.known])

    @property
    def keys(self) -> Mapping[str, object]:
        """The keys of cdcd's configuration that name the topics of tables; {}: they are those of the default.

        Raises:
            UnnamedError: cdcd does not name topics so.
            UndecidedError: the database's tables decide, and it was not asked.
        """
        shared = self.shared
        if self.template is not None and not shared:
            return self._by_template(self.template)
        if self.tables is None:
            raise UndecidedError(
                "The topics depend on the names of the tables, and the database was not asked."
            )
        merged = {each for tables in shared.values() for each in tables}
        changed = {
            table: topic
            for table in self.tables
            if table not in merged and (topic := self.topic_of(*table)) != own_topic(self.prefix)(*table)
        }
        self._refuse_collisions(
            TopicNames(
                self.prefix,
                changed,
                shared=tuple([_shared(topic, tables) for topic, tables in shared.items()]),
            )
        )
        keys: dict[str, object] = {}
        if shared:
            keys["topics.shared"] = {
                topic: {"tables": [pattern_of_table(*each) for each in tables], "key_field": None}
                for topic, tables in shared.items()
            }
        if changed and self.rules is not None:
            keys["topics.rename"] = list(self.rules)
        elif changed:
            keys["topics.names"] = {pattern_of_table(*table): topic for table, topic in changed.items()}
        return keys

    def tables_of(self) -> Mapping[str, list[Table]]:
        """The known tables whose records end in each topic."""
        found: dict[str, list[Table]] = {}
        for table in self.tables or ():
            found.setdefault(self.topic_of(*table), []).append(table)
        return found

    @property
    def shared(self) -> Mapping[str, list[Table]]:
        """The topics in which the records of several known tables end, with these tables."""
        return {topic: tables for topic, tables in self.tables_of().items() if len(tables) > 1}

    @property
    def is_of_today(self) -> bool:
        """Whether the keys name the tables of today, so that a later one has another topic."""
        return bool(self.shared) or (self.template is None and self.rules is None)

    def _by_template(self, template: str) -> Mapping[str, object]:
        if template == routing.DEFAULT:
            return {}
        if self.tables is None and not {"{schema}", "{table}"} <= set(re.findall(r"\{\w+\}", template)):
            raise UndecidedError(
                f"Several tables may have one topic ({template}), and the database was not asked."
            )
        self._refuse_collisions(TopicNames(self.prefix, template=template))
        return {"topics.name": template}

    def _refuse_collisions(self, names: TopicNames) -> None:
        found: list[CdcdError] = list(collisions(self.tables or (), names))
        if found:
            raise UnnamedError(f"{found[0].message} Give the tables other topics, and accept this option.")


def _shared(topic: str, tables: list[Table]) -> SharedTopic:
    patterns = [parse_pattern(pattern_of_table(*each), "topics.shared") for each in tables]
    return SharedTopic(topic, tuple(patterns), "")


def _rule(router: Router) -> Mapping[str, str] | None:
    """The router as a rule of `topics.rename`; None: the configuration takes no such rule."""
    try:
        check_expression(router.expression.pattern)
        check_replacement(router.replacement, router.expression.pattern)
    except ValueError:
        return None
    return {"regex": router.expression.pattern, "replacement": router.replacement}


def _template(router: Router, prefix: str) -> str | None:
    """What the router makes of every table's topic; None: that depends on the table's names.

    The expression must match characters of the prefix one by one, and behind them only runs of any characters, parted
    by points. Where such a run begins and ends, the points of the topic say, and not the letters of the names.
    """
    fixed = _fixed_length(router.expression.pattern)
    if fixed is None or fixed > len(prefix) + 1:
        return None
    own = f"{prefix}.{_SCHEMA}.{_TABLE}"
    topic = router.routed(own)
    if topic == own:
        return routing.DEFAULT
    if topic.startswith(f"{prefix}."):
        topic = "{prefix}" + topic[len(prefix) :]
    return topic.replace(_SCHEMA, "{schema}").replace(_TABLE, "{table}")


def _fixed_length(pattern: str) -> int | None:
    """How many characters the expression matches one by one before its first run; None: it is not of the form."""
    length = place = 0
    runs = 0
    after_run = False
    while place < len(pattern):
        if group := _GROUP.match(pattern, place):
            place = group.end()
        elif run := _RUN.match(pattern, place):
            if after_run:
                return None
            place, runs, after_run = run.end(), runs + 1, True
        elif runs and (point := _POINT.match(pattern, place)):
            place, after_run = point.end(), False
        elif not runs and (one := _FIXED.match(pattern, place)):
            place, length = one.end(), length + 1
        else:
            return None
    return length if after_run else None


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

    def listed(self, name: str, former: str) -> tuple[str, ...]:
        """An option that is a list; `former` is its name before Kafka 2.6, which Kafka 4.0 does not read any more."""
        return self.texts(name) or self.texts(former)

    def flag(self, name: str, *, default: bool) -> bool:
        return self.text(name, str(default)).lower() == "true"

    @property
    def is_negated(self) -> bool:
        return self.flag("negate", default=False)


@dataclass(frozen=True, slots=True)
class Renamed:
    """Meaning of a field's name behind a transform that has renamed or left out fields.

    Attributes:
        column: the column that the field has the value of; None if rows no longer have a field of this name.
        patterns: the tables in which the name has this meaning.
    """

    column: str | None
    patterns: tuple[str, ...]


@dataclass(slots=True)
class Course:
    """What earlier transforms have made of the records.

    Attributes:
        known: the captured tables; None: the database was not asked.
        has_schemas: records have Connect's schemas, whose names follow the topics.
        existing: the topics that are there; empty if Kafka was not asked.
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
    existing: frozenset[str] = frozenset()
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
            f"The predicate {predicate.alias} ({kind.rpartition('.')[2]}) selects single records; cdcd can apply the "
            f"rule only to whole tables. Do the work of the transform in a job that reads the topics, and accept this "
            "option."
        )

    def reached(self, expression: str, *, negated: bool = False) -> Reach:
        """The tables whose topics, as they are by now, match. RefusedError: that is not known."""
        if self.rerouted:
            raise RefusedError(
                f"The predicate selects records by their topics, and the topics after transform {self.rerouted} are "
                f"not known. Write "
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
        meant = {each: frozenset(Reach((each,)).tables(self.known)) for each in (*patterns, *taken)}
        for pattern in patterns:
            for other, holder in taken.items():
                if merges and pattern == other:
                    continue
                overlap = meant[pattern] & meant[other]
                if overlap or (self.known is None and _may_overlap(pattern, other)):
                    raise RefusedError(
                        f"A table can have one rule in {key}, and transform {holder} already gave it one. Write one "
                        f"rule for both by hand, and accept this option."
                    )
        taken |= dict.fromkeys(patterns, alias)

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


def _may_overlap(one: str, other: str) -> bool:
    """Return False only if no table matches both patterns, whatever tables the database has."""
    return one == other or not (parse_pattern(one).is_literal and parse_pattern(other).is_literal)

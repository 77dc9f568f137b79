"""A shape (`shape.py`) that sends rows to topics by their values.

`RowRoutes` decides which topic a row goes to, and `RouteShape` changes events accordingly:

| the event | its records |
|---|---|
| insert | in the topic of the row |
| update of a row that stays in its topic | in that topic |
| update of a row that goes elsewhere | a delete in the former topic, and an insert in the new one |
| delete | in the topic of the old row |
| truncate, end of another table's rows | in all topics of the table |

The parts of an event have its number, as the two halves of an update of the key have. If the old topic is not
known, each possible topic gets the delete; if the new topic is among them, the update stays an update there.

The stream makes each record for the table's own topic, and then moves it to another topic
(`RecordStream.to_topic`). So the content of a record does not depend on its topic. Rows that snapshots read are divided
by topic before they are encoded, so within each topic they are in the order in which they were read.

The rule of `RowRoutes`: at each position in the stream, a row is in exactly one of its table's topics. The first rule
that is true decides which; if none is true, it is the table's own topic. So an update after which a row belongs to
another topic becomes a delete in the old topic, and an insert in the new one.

This needs the old row, as a filter does (`filtering.py`). So rules may only use columns of the replica identity,
which are all columns under REPLICA IDENTITY FULL. With `old_row: assumed`, they may use other columns too. If the
old values of these are not known, the row may have been in several topics (`went`), and each of them gets a delete.

A rule that has no answer for a row whose values are known never has one for it, so the row was in the topic where
it goes now.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.table_rules import TableRules, both_match
from cdcd.core.facts import Observer
from cdcd.core.facts.rules import RouteFailed
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Relation, Truncate, Value
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.shaping.column_values import UNSENT
from cdcd.core.records.shaping.compiling import ExpressionError, compile_expression
from cdcd.core.records.shaping.evaluation import BOOL, Condition, Missing, Node, Values
from cdcd.core.records.shaping.expressions import columns_of
from cdcd.core.records.shaping.row_values import (
    NOT_SENT,
    ORDINARY,
    RowValues,
    RuleWords,
    UnansweredRows,
    delete_of,
    insert_of,
    old_and_new,
    refuse_unfit,
    used_columns,
)
from cdcd.core.records.shaping.settings import OWN_TOPIC, REQUIRED, TableRoutes
from cdcd.core.records.shaping.shape import ROUTE_FAILED, Counts, Lines, Shape, ShapedPart
from cdcd.core.transactions.drafts import SpoolItem

KEY: Final = "routes.tables"

WORDS: Final = RuleWords(
    key=KEY,
    once="The rows of the table {} can be routed by one list of rules",
    unfit="The rules of {} do not fit",
    asks="The rules of {} ask for",
    part="rules",
    assumed="a row whose old values are not known gets a delete in each topic where it may be (docs/routes.md).",
)


def table_routes(routes: Sequence[TableRoutes]) -> TableRules[TableRoutes]:
    """Return the routes of a configuration, by table. ConfigError: a pattern is malformed.

    A table should have the routes of at most one pattern (`contradiction`).
    """
    return TableRules(KEY, [(each.table, each) for each in routes])


def contradiction(found: Sequence[TableRoutes]) -> str:
    """Return why a table cannot have these routes; "" if it can."""
    return both_match(KEY, [each.table for each in found])


class RouteRule(Condition):
    """A rule that matches its table. See `Condition` for further attributes.

    Attributes:
        topic: topic of the rows for which the rule is true.
        places: indexes of the columns that it uses, among the values of a row.
    """

    def __init__(self, node: Node, topic: str, places: list[int]) -> None:
        Condition.__init__(self, node)
        self.topic = topic
        self.places = places

    def lacks_values(self, row: Values) -> bool:
        """Return whether PostgreSQL did not send a value that the rule uses."""
        for place in self.places:
            value = row[place]
            if isinstance(value, Missing) and value.reason in (NOT_SENT, UNSENT):
                return True
        return False


class RowRoutes(RowValues):
    """The routes of a table; a new object is made when the table is altered. See `RowValues` for further attributes.

    Attributes:
        topics: all topics of the table, each once, beginning with its own.

    Args:
        topics: the table's own topic, and the topics of the rules in their order.
    """

    def __init__(
        self,
        relation: Relation,
        chosen: TableRoutes,
        topics: Sequence[str],
        types: Mapping[int, TypeDescription],
        protections: Protections,
        *,
        problem: str = "",
        table: TableDescription = ORDINARY,
    ) -> None:
        RowValues.__init__(self, relation, problem, table)
        self.topics = tuple(dict.fromkeys(topics))
        self._own = topics[0]
        self._ends_unanswered = chosen.on_error == OWN_TOPIC
        self._rules: list[RouteRule] = []
        if problem:
            return
        number = 0
        try:
            names = dict.fromkeys([name for rule in chosen.rules for name in columns_of(rule.when)])
            shown = "which topic a row goes to"
            columns = self._use(used_columns(relation, names, types, protections, table=table, shown=shown))
            for rule, topic in zip(chosen.rules, topics[1:], strict=True):
                number += 1
                places = [columns[name][0] for name in columns_of(rule.when)]
                self._rules.append(RouteRule(compile_expression(rule.when, columns, BOOL), topic, places))
        except ExpressionError as error:
            self.problem = f"rule {number}: {error}" if number else str(error)
            self._rules = []

    def goes(self, values: Sequence[Value]) -> str:
        """Return the topic of a row with these values, which are those of the columns `indexes`."""
        self.reason = self.problem
        row = self._new_values(values)
        for rule in self._rules:
            found = rule.answer(row)
            if found:
                return rule.topic
            if found is None:
                self.reason = self.reason or rule.reason
                if self._ends_unanswered:
                    break
        return self._own

    def went(self, old: Sequence[Value], *, whole: bool) -> list[str]:
        """Return all topics that may have a row with these values, which are those of the columns `indexes`; each once.

        Args:
            old: the part of the old row that PostgreSQL has sent.
            whole: whether this is the complete row; if not, only the replica identity is known.
        """
        if self.problem:
            # The table was altered, so it is unknown where its rows went before.
            return list(self.topics)
        row = self._old_values(old, whole)
        found: dict[str, None] = {}
        for rule in self._rules:
            answer = rule.answer(row)
            if answer:
                found[rule.topic] = None
                return list(found)
            if answer is None:
                unknown = rule.lacks_values(row)
                if unknown:
                    found[rule.topic] = None
                if self._ends_unanswered:
                    found[self._own] = None
                    if not unknown:
                        return list(found)
        found[self._own] = None
        return list(found)

    def goes_line(self, line: bytes) -> str:
        """Return the topic of this row, which is a line of COPY with its newline."""
        values = self._line_values(line)
        return self._own if values is None else self.goes(values)


def check_routes(
    relation: Relation,
    routes: Sequence[TableRoutes],
    types: Mapping[int, TypeDescription],
    protections: Protections,
    table: TableDescription = ORDINARY,
) -> None:
    """Raise ConfigError if routes do not match their table, or need values of old rows that PostgreSQL does not send.

    Args:
        routes: the routes of the table, at least one.
    """
    chosen = routes[0]
    topics = ["", *[rule.topic for rule in chosen.rules]]
    found = RowRoutes(relation, chosen, topics, types, protections, table=table)
    needs_old = chosen.old_row == REQUIRED
    twice = contradiction(routes)
    refuse_unfit(WORDS, found, relation, table, chosen.table, twice=twice, needs_old=needs_old)


def routed(
    inner: Encoder,
    routes: tuple[TableRoutes, ...],
    settings: EncoderSettings,
    observe: Observer,
    *,
    refuses: bool = False,
) -> Encoder:
    """Return `inner`, which sends rows to the topics of the routes, if there are any.

    Args:
        refuses: as in `RouteShape`.
    """
    if routes:
        inner.shapes.put(RouteShape(routes, settings, observe, refuses=refuses))
    return inner


class RouteShape(Shape):
    """Sends rows to the topics of their routes. See `Shape` for the methods.

    Args:
        refuses: whether rules that do not fit their table are an error of the table. If not, they have no answer for
            any row (`TableRoutes.on_error`).
    """

    def __init__(
        self,
        routes: tuple[TableRoutes, ...],
        settings: EncoderSettings,
        observe: Observer,
        *,
        refuses: bool = False,
    ) -> None:
        self._refuses = refuses
        self._chosen = table_routes(routes)
        self._protections = settings.protections
        self._names = settings.topics
        self._routes: dict[int, RowRoutes] = {}
        self._unanswered = UnansweredRows(ROUTE_FAILED, RouteFailed, observe)

    @property
    def is_on(self) -> bool:
        return bool(self._routes)

    def counted(self, counts: Counts) -> Counts:
        return {**counts, **self._unanswered.counts}

    def check(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        chosen = self._chosen.of_table(relation) if self._refuses else ()
        if chosen:
            check_routes(relation, chosen, types, self._protections, table)

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        chosen = self._chosen.of_table(relation)
        if not chosen:
            self._routes.pop(relation.oid, None)
            return
        self._routes[relation.oid] = RowRoutes(
            relation,
            chosen[0],
            (
                self._names.share(relation.schema, relation.name),
                *self._names.routed(relation.schema, relation.name),
            ),
            types,
            self._protections,
            problem=contradiction(chosen),
            table=table,
        )

    def takes(self, item: SpoolItem, in_stream: bool) -> bool:
        if not isinstance(item, bytes):
            return False
        tag = peek.tag_of(item)
        if tag in peek.ROWS:
            return peek.relation_of_row(item, in_stream) in self._routes
        return tag == peek.TRUNCATE and any(
            oid in self._routes for oid in peek.relation_oids(item, in_stream)
        )

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        if not self.takes(frame, in_stream):
            return None
        if peek.tag_of(frame) == peek.TRUNCATE:
            return self._truncates(frame, in_stream)
        oid = peek.relation_of_row(frame, in_stream)
        found = self._routes[oid]
        tag = peek.tag_of(frame)
        old, new, whole = old_and_new(found, frame, in_stream)
        if tag == peek.DELETE:
            return [ShapedPart(frame, oid, topic) for topic in found.went(old, whole=whole)]
        topic = found.goes(new)
        if found.reason:
            self._unanswered.look_at(found, peek.lsn_of(frame), now_us)
        if tag == peek.INSERT:
            return [ShapedPart(frame, oid, topic)]
        former = found.went(old, whole=whole)
        if former == [topic]:
            return [ShapedPart(frame, oid, topic)]
        gone = delete_of(found, frame, in_stream)
        parts = [ShapedPart(gone, oid, each) for each in former if each != topic]
        new_frame = frame if topic in former else insert_of(found, frame, in_stream, whole=whole)
        parts.append(ShapedPart(new_frame, oid, topic))
        return parts

    def _truncates(self, frame: bytes, in_stream: bool) -> list[ShapedPart]:
        """Return the truncate of all tables in their own topics, and one for each further topic of each table."""
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, Truncate), "the tag says so"
        parts = [ShapedPart(frame)]
        for oid in message.relation_oids:
            found = self._routes.get(oid)
            if found is None:
                continue
            alone = Truncate(message.xid, message.cascade, message.restart_identity, (oid,))
            of_table = frame[:XLOG_HEADER] + write_message(alone)
            parts += [ShapedPart(of_table, oid, topic) for topic in found.topics[1:]]
        return parts

    def topics(self, oid: int) -> tuple[str, ...]:
        found = self._routes.get(oid)
        return () if found is None else found.topics[1:]

    def rows(self, oid: int, given: Lines, lsn: int, now_us: int) -> list[Lines]:
        found = self._routes.get(oid)
        if found is None:
            return [given]
        by_topic: dict[str, list[bytes]] = {}
        for line in given.lines:
            by_topic.setdefault(found.goes_line(line), []).append(line)
            self._unanswered.look_at(found, lsn, now_us)
        return [Lines(topic, lines) for topic, lines in by_topic.items()] or [given]

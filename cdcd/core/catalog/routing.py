"""Topics of a table's records: by a template, a text with `{prefix}`, `{schema}` and `{table}` in it, or by a
configured name. Rules may then rename the topic of the template (`renaming.py`).

By default, the topic of a table begins with `<prefix>.` and has a second dot after it, so that one right on topics is
enough, and another pipeline with another prefix has other topics. Any other topic needs a claim (`claims.py`), because
nothing in its name says whose it is. Such a topic never begins with `_`, unless the configuration names it: Kafka's own
topics begin so, and the owner of a table chooses its name.

Parts of cdcd identify a table by `schema.table` without quotes. If a schema or a table has a dot in its name, this
text can be split in two ways. `{schema}.{table}` side by side needs no split; with other templates such a table has
no topic by the template (`needs_name`), and `topics.names` must give it one.

A table with routed rows (`records/shaping/routed.py`) has further topics besides its own. They also depend only
on the table's name, not on its rows.

Characters that Kafka does not allow become `_` (Debezium's rule, which counts a character outside the basic plane
as two). So two tables can get the same topic. Kafka also refuses two topics that differ only in `.` and `_`,
because their metrics have the same name. Either case would mix or lose changes, so the second user of such a topic
is refused. `collisions` finds these cases in advance. Only topics that the configuration shares among tables have
the records of several tables (`sharing.py`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cdcd.core.catalog.patterns import PART, parse_pattern, unquoted
from cdcd.core.catalog.renaming import Router, UnreadableError
from cdcd.core.catalog.sharing import SharedTopic, share_of
from cdcd.core.errors import SinkError
from cdcd.core.table_names import Table, split_table, table_text

DEFAULT: Final = "{prefix}.{schema}.{table}"

_PLACEHOLDERS: Final = ("prefix", "schema", "table")
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_BOTH: Final = "{schema}.{table}"


def check_template(template: str) -> None:
    """Raise ValueError if the text is no template of topics."""
    for name in _PLACEHOLDER.findall(template):
        if name == "database":
            raise ValueError(
                "{database} is not a placeholder, because a pipeline reads one database; write its name as it is"
            )
        if name not in _PLACEHOLDERS:
            raise ValueError(
                f"{{{name}}} is not a placeholder; there are {{prefix}}, {{schema}} and {{table}}"
            )
    if re.fullmatch(r"[A-Za-z0-9._-]*", _PLACEHOLDER.sub("", template), re.ASCII) is None:
        raise ValueError(
            "may hold only ASCII letters, digits, '.', '_' and '-' beside {prefix}, {schema} and {table}, as Kafka "
            "demands of topics"
        )
    if _PLACEHOLDER.sub("x", template) in ("", ".", ".."):
        raise ValueError("must not be empty, . or .., which Kafka does not take as the name of a topic")


def check_routed(text: str, pattern: str) -> None:
    """Raise ValueError if the text names no topic for rows of the tables that a pattern matches."""
    placeholders = _PLACEHOLDER.findall(text)
    for name in placeholders:
        if name not in _PLACEHOLDERS:
            raise ValueError(
                f"topic: {{{name}}} is not a placeholder; there are {{prefix}}, {{schema}} and {{table}}"
            )
    if re.fullmatch(r"[A-Za-z0-9._-]*", _PLACEHOLDER.sub("", text), re.ASCII) is None:
        raise ValueError(
            f"topic: {text} may hold only ASCII letters, digits, '.', '_' and '-' beside {{prefix}}, {{schema}} and "
            "{table}, as Kafka demands of topics"
        )
    parsed = parse_pattern(pattern, "routes.tables")
    if parsed.has_wild_table and "table" not in placeholders:
        raise ValueError(
            f"topic: {text} needs {{table}}, because {pattern} may match several tables and a topic has the rows of one"
        )
    if parsed.has_wild_schema and "schema" not in placeholders:
        raise ValueError(
            f"topic: {text} needs {{schema}}, because {pattern} may match tables of several schemas and a topic has "
            "the rows of one"
        )


def rendered(template: str, prefix: str, schema: str, table: str) -> str:
    """Return the topic's name, with all characters of the names."""
    values = {"prefix": prefix, "schema": schema, "table": table}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def needs_name(template: str, schema: str, table: str) -> bool:
    """Return True if the template gives the table no topic, because a dot in its name could
    separate schema and table.
    """
    return "." in schema + table and not _needs_no_split(template)


def _needs_no_split(template: str) -> bool:
    return not {"schema", "table"} & set(_PLACEHOLDER.findall(template.replace(_BOTH, "")))


TOPIC_LENGTH_MAX: Final = 249
"""Maximum length of a topic's name (org.apache.kafka.common.internals.Topic): a file name also contains the
partition's number."""

_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9._-]")
_LEGAL: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+", re.ASCII)

_TABLE: Final = re.compile(rf"({PART.pattern})\.({PART.pattern})", re.DOTALL)

_TABLE_OWNER: Final = "table "
_SHARED_OWNER: Final = "the tables of topics.shared."


def parse_table(text: str) -> Table:
    """Return schema and name of `schema.table`; a part in double quotes may contain dots.

    Raises:
        ValueError: the text has another form.
    """
    match = _TABLE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text} is not <schema>.<table>; a part that holds a point belongs in double quotes"
        )
    return unquoted(match[1]), unquoted(match[2])


def table_named(text: str) -> str:
    """Return `schema.table` as cdcd names tables, from text with or without double quotes."""
    try:
        return table_text(*parse_table(text))
    except ValueError:
        return text


def unchecked_topic(*parts: str) -> str:
    """Return the topic of the parts joined by dots, whatever its length."""
    return _allowed(".".join(parts))


def _allowed(name: str) -> str:
    return _FORBIDDEN.sub(lambda match: "_" if match[0] < "\U00010000" else "__", name)


def topic_name(*parts: str) -> str:
    """Return the topic of the parts joined by dots; raise SinkError if it is longer than Kafka allows."""
    name = unchecked_topic(*parts)
    _check_length(name)
    return name


def equivalent(topic: str) -> str:
    """Return the same text for all topics that are the same to Kafka."""
    return topic.replace(".", "_")


def may_be_of_a_table(topic: str, prefix: str) -> bool:
    """Return whether Kafka could take the topic for that of a table: `<prefix>.<schema>.<table>`."""
    return re.fullmatch(rf"{re.escape(equivalent(prefix))}_.+_.+", equivalent(topic)) is not None


def _check_length(name: str) -> None:
    if len(name) > TOPIC_LENGTH_MAX:
        raise SinkError(
            f"The topic {name} has {len(name)} characters; Kafka allows {TOPIC_LENGTH_MAX}.",
            hint="Give the table a shorter topic in topics.names, choose a shorter topics.prefix, or leave the table"
            " out of the publication.",
        )


@dataclass(frozen=True, slots=True)
class RoutedTopics:
    """Further topics of tables with routed rows.

    Attributes:
        table: pattern of tables (`catalog/patterns.py`).
        topics: topics of the rules, in their order: names, or templates with `{prefix}`, `{schema}` and `{table}`.
    """

    table: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Names of a pipeline's topics.

    Attributes:
        prefix: prefix of the topics of tables, and of cdcd's own topics by default.
        names: configured topics of tables.
        message, schemas, checkpoint, dead_letter, transaction, heartbeat: cdcd's own topics; None: no such topic.
        template: template for all other tables.
        routes: topics of tables with routed rows.
        renames: rules that rename the topics by `template`, in their order.
        claims: the topic with the claims of all pipelines, which no table may have.
        shared: topics for several tables.
    """

    prefix: str
    names: Mapping[Table, str] = field(default_factory=dict)
    message: str | None = None
    schemas: str | None = None
    checkpoint: str | None = None
    dead_letter: str | None = None
    transaction: str | None = None
    heartbeat: str | None = None
    template: str = DEFAULT
    routes: tuple[RoutedTopics, ...] = ()
    renames: tuple[Router, ...] = ()
    claims: str | None = None
    shared: tuple[SharedTopic, ...] = ()

    def table(self, schema: str, name: str) -> str:
        """Return the topic of a table. `ClaimedTopics` checks that Kafka allows it and no other table has it."""
        given = self.names.get((schema, name))
        if given is not None:
            return given
        shared = self.shared_topic(schema, name)
        return self.alone(schema, name) if shared is None else shared.topic

    def alone(self, schema: str, name: str) -> str:
        """Return the topic that the template and the rules give a table."""
        return self._renamed(rendered(self.template, self.prefix, schema, name))

    def shared_topic(self, schema: str, name: str) -> SharedTopic | None:
        """Return the topic that the table shares with others; None if it shares none."""
        if (schema, name) in self.names:
            return None
        for each in self.shared:
            if each.has(schema, name):
                return each
        return None

    def share(self, schema: str, name: str) -> str:
        """Return the name of the table's records inside of cdcd: its topic, or its share of a topic."""
        topic = self.table(schema, name)
        shared = self.shared and self.shared_topic(schema, name)
        return share_of(topic, table_text(schema, name)) if shared else topic

    def _renamed(self, topic: str) -> str:
        topic = _allowed(topic)
        for rule in self.renames:
            topic = rule.routed(topic)
        return topic

    def is_under_prefix(self, topic: str) -> bool:
        """Return True if the topic begins with the prefix, so that it needs no claim."""
        return topic.startswith(f"{self.prefix}.")

    @property
    def has_claims(self) -> bool:
        """Return True if a topic of a table may need a claim."""
        texts = (*self.names.values(), *[topic for each in self.routes for topic in each.topics])
        texts += tuple([each.topic for each in self.shared])
        return bool(self.renames) or not all(map(self._begins_with_prefix, (self.template, *texts)))

    def _begins_with_prefix(self, text: str) -> bool:
        return self.is_under_prefix(text) or text.startswith("{prefix}.")

    def routed(self, schema: str, name: str) -> tuple[str, ...]:
        """Return the topics of the rules that route a table's rows, in the rules' order; () without rules.

        ConfigError: a pattern is malformed.
        """
        for each in self.routes:
            if parse_pattern(each.table, "routes.tables").matches(schema, name):
                return tuple([_allowed(rendered(topic, self.prefix, schema, name)) for topic in each.topics])
        return ()

    def all_of(self, schema: str, name: str) -> tuple[str, ...]:
        """Return every topic of a table's records, each once; the first is the table's own."""
        return tuple(dict.fromkeys([self.table(schema, name), *self.routed(schema, name)]))

    def shares_of(self, schema: str, name: str) -> tuple[str, ...]:
        """As `all_of`, by the names that the table's records have inside of cdcd."""
        return tuple(dict.fromkeys([self.share(schema, name), *self.routed(schema, name)]))

    def qualified(self, table: str) -> str:
        """As `table`, for the text of a table."""
        return self.table(*split_table(table))

    def share_named(self, table: str) -> str:
        """As `share`, for the text of a table."""
        return self.share(*split_table(table))

    def lacks_name(self, schema: str, name: str) -> bool:
        """Return True if the template gives the table no topic, and none is configured."""
        return needs_name(self.template, schema, name) and (schema, name) not in self.names

    def own(self) -> list[tuple[str, str]]:
        """Return cdcd's own topics, each with its purpose."""
        purposes = (
            (self.message, "logical messages"),
            (self.schemas, "descriptions of tables"),
            (self.checkpoint, "the checkpoint"),
            (self.dead_letter, "records that are too large"),
            (self.transaction, "transaction metadata"),
            (self.heartbeat, "heartbeats"),
        )
        return [(topic, purpose) for topic, purpose in purposes if topic is not None]


class ClaimedTopics:
    """Registry of topics with their owners. SinkError: two of cdcd's own topics collide."""

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        given = (*names.names.values(), *[topic for each in names.routes for topic in each.topics])
        self._named = frozenset(
            [topic for topic in (*given, *[each.topic for each in names.shared]) if "{" not in topic]
        )
        self._owners: dict[str, str] = {}
        self._identifiers: dict[tuple[str, str], str] = {}
        """By shared topic and value of the field in keys, the table with this value."""
        for topic, owner in names.own():
            self.claim(topic, owner)
        if names.claims is not None:
            self.claim(names.claims, "the claims of all pipelines")
        for each in names.shared:
            self.claim(each.topic, f"{_SHARED_OWNER}{each.topic}")

    def table(self, schema: str, name: str) -> str:
        """Return a table's own topic.

        Raises SinkError if Kafka does not allow one of its topics, or if one collides with another topic.
        """
        topic = self._names.table(schema, name)
        if self._names.lacks_name(schema, name):
            raise SinkError(
                f'The table "{schema}"."{name}" has a point in its name, which topics.name: {self._names.template} '
                "cannot tell from the one between schema and table.",
                hint="Give it a topic of its own, as topics.names: "
                f"{{'{_quoted(schema)}.{_quoted(name)}': {topic}}}, or leave the table out of the publication.",
            )
        shared = self._names.shared_topic(schema, name)
        if shared is not None:
            self._share(shared, schema, name)
        for each in self._names.all_of(schema, name):
            if shared is not None and each == topic:
                continue
            if each.startswith("_") and not self._names.is_under_prefix(each) and each not in self._named:
                raise SinkError(
                    f'The topic {each} of table "{schema}"."{name}" begins with _, as Kafka\'s own topics do, and the '
                    "table's name alone gives this topic.",
                    hint=f"If the topic is meant, name it: topics.names: "
                    f"{{'{_quoted(schema)}.{_quoted(name)}': {each}}}. Otherwise give the table another one there, or "
                    "leave the table out of the publication.",
                )
            self.claim(each, f'{_TABLE_OWNER}"{schema}"."{name}"')
        return topic

    def _share(self, shared: SharedTopic, schema: str, name: str) -> None:
        """Check that the table may share the topic, and that no other table has its value in keys."""
        table = f'"{schema}"."{name}"'
        key = f"topics.shared.{shared.topic}"
        if "." in schema + name:
            raise SinkError(
                f"The table {table} has a point in its name, and {key} matches it.",
                hint=f"Narrow the patterns of {key}, or rename the table.",
            )
        for each in self._names.shared:
            if each is not shared and each.has(schema, name):
                raise SinkError(
                    f"The table {table} is matched by {key} and topics.shared.{each.topic}.",
                    hint="Narrow one of the patterns, so that the table has one topic.",
                )
        if not shared.key_field:
            return
        try:
            value = shared.identifier(self._names.alone(schema, name))
        except UnreadableError as error:
            raise SinkError(
                f"The table {table} has no value for the field {shared.key_field} of keys: {error}",
                hint=f"Correct key_replacement of {key}.",
            ) from None
        holder = self._identifiers.setdefault((shared.topic, value), table)
        if holder != table:
            raise SinkError(
                f"The tables {holder} and {table} share topic {shared.topic}, and both have the value {value} in the "
                f"field {shared.key_field} of keys.",
                hint=f"Change key_regex and key_replacement of {key}, so that each table has a value of its own.",
            )

    def claim(self, topic: str, owner: str) -> None:
        """Claim `topic` for `owner`; raise SinkError if another owner has it or a topic that is the same to Kafka."""
        _check_length(topic)
        if _LEGAL.fullmatch(topic) is None:
            raise SinkError(
                f"The topic {topic} of {owner} has characters that Kafka does not allow.",
                hint="Use ASCII letters, digits, '.', '_' and '-'.",
            )
        holder = self._owners.setdefault(equivalent(topic), owner)
        if holder != owner:
            raise SinkError(
                f"The topic {topic} of {owner} collides with that of {holder}: to Kafka names that differ only in"
                " '.' and '_' are the same.",
                hint=f"Give one of them another topic{_example(owner, topic)}, or leave a table out of the"
                " publication.",
            )


def _quoted(name: str) -> str:
    """Return a part of a table's name in a form that `parse_table` reads."""
    return '"' + name.replace('"', '""') + '"'


def _example(owner: str, topic: str) -> str:
    """Return an example of the key that gives a table another topic."""
    table = owner.removeprefix(_TABLE_OWNER)
    return f", as topics.names: {{'{table}': {topic}_2}}" if table != owner else ""


def collisions(tables: Iterable[Table], names: TopicNames) -> list[SinkError]:
    """Return all errors that `ClaimedTopics` would raise for these tables and cdcd's own topics; [] if there is none.

    Of several tables with the same topic, each except the first is an error.
    """
    try:
        claimed = ClaimedTopics(names)
    except SinkError as error:
        return [error]
    found: list[SinkError] = []
    for schema, name in tables:
        try:
            claimed.table(schema, name)
        except SinkError as error:
            found.append(error)
    return found

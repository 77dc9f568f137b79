"""What the topics of tables are called after the transforms that rename them, and the keys of cdcd's for that.

A topic is followed in two ways. If the database's tables are known, each table's topic is renamed as Java would do it.
Besides, the first transform is asked what it makes of a schema and a table with any names: if its expression can tell
nothing of the two names but where they begin and end, the answer is a template for every table (`topics.name`). Without
such a template, the tables of today are named one by one (`topics.names`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cdcd.core.catalog import topic_templates
from cdcd.core.catalog.routing import TopicNames, collisions
from cdcd.core.errors import CdcdError
from cdcd.tools.adopt.reach import Known, KnownTable, Router, UndecidedError, own_topic

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
    """

    prefix: str
    known: Known
    stages: tuple[tuple[Accepts, Router], ...] = ()
    template: str | None = topic_templates.DEFAULT

    def routed(self, router: Router, accepts: Accepts, *, is_everywhere: bool) -> "TopicCourse":
        """The topics after one more transform."""
        template = None
        if is_everywhere and not self.stages:
            template = _template(router, self.prefix)
        return replace(self, stages=(*self.stages, (accepts, router)), template=template)

    def final(self, topic: str) -> str:
        """Where records of a topic go in the end. UnreadableError: Java would refuse a replacement."""
        for accepts, router in self.stages:
            if accepts(topic):
                topic = router.routed(topic)
        return topic

    def topic_of(self, schema: str, table: str) -> str:
        return self.final(own_topic(self.prefix)(schema, table))

    @property
    def keys(self) -> Mapping[str, object]:
        """The keys of cdcd's configuration that name the topics of tables; {}: they are those of the default.

        Raises:
            UnnamedError: cdcd does not name topics so.
            UndecidedError: the database's tables decide, and it was not asked.
        """
        if self.template is not None:
            return self._by_template(self.template)
        if self.known is None:
            raise UndecidedError(
                "The topics depend on the names of the tables, and the database was not asked."
            )
        changed = {
            each: topic
            for each in self.known
            if (topic := self.topic_of(each.schema, each.name))
            != own_topic(self.prefix)(each.schema, each.name)
        }
        for table, topic in changed.items():
            if not topic_templates.begins_as_table(topic, self.prefix):
                raise UnnamedError(self._refused(table.qualified, topic))
        names = {(each.schema, each.name): topic for each, topic in changed.items()}
        self._refuse_collisions(TopicNames(self.prefix, names))
        return {"topics.names": {each.pattern: topic for each, topic in changed.items()}} if changed else {}

    @property
    def is_of_today(self) -> bool:
        """Whether the keys name the tables of today, so that a later one has the default's topic."""
        return self.template is None

    def _by_template(self, template: str) -> Mapping[str, object]:
        if template == topic_templates.DEFAULT:
            return {}
        try:
            topic_templates.check(template)
        except ValueError:
            raise UnnamedError(self._refused("a table", template) + self._other_prefix(template)) from None
        if not {"{schema}", "{table}"} <= set(re.findall(r"\{\w+\}", template)):
            self._refuse_collisions(TopicNames(self.prefix, template=template))
            if self.known is None:
                raise UndecidedError(
                    f"Several tables may have one topic ({template}), and the database was not asked."
                )
        self._refuse_collisions(TopicNames(self.prefix, template=template))
        return {"topics.name": template}

    def _refused(self, whose: str, topic: str) -> str:
        return (
            f"It sends the records of {whose} to {topic}. A topic of a table begins with {self.prefix}. in cdcd and "
            "has a second point after it, because rights on topics, `cdcd drop` and the mirror go by that. Choose "
            "such topics in topics.name or topics.names, let the consumers read those, and accept this option."
        )

    def _other_prefix(self, template: str) -> str:
        other = template.removesuffix(f".{topic_templates.DEFAULT.partition('.')[2]}")
        other = other.replace("{prefix}", self.prefix)
        if other == template or re.search(r"[{}]", other):
            return ""
        return f" If nobody reads `source.name`, set topics.prefix: {other} instead, which changes it too."

    def _refuse_collisions(self, names: TopicNames) -> None:
        tables: list[KnownTable] = list(self.known or ())
        found: list[CdcdError] = list(collisions([(each.schema, each.name) for each in tables], names))
        if found:
            raise UnnamedError(
                f"{found[0].message} A topic of cdcd's has the rows of one table. Let the consumers read several "
                "topics, or let a job after the topics bring them together, and accept this option."
            )


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
        return topic_templates.DEFAULT
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

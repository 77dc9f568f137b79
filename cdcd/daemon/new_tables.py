"""Topics of tables that were published after the session began. They are created together, by few requests.

A topic is created when a table has its first record. If many tables are created in one transaction, their first
records follow each other while all other tables wait, and a broker takes ten times as long for topics that are
created one by one. So the first missing topic makes cdcd list the published tables.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from cdcd.core.errors import TransientError


class NewTables:
    """The published tables that were not there when the session began.

    Args:
        published: lists the published tables as `schema.table`, by oid.
        topic_of: returns the topic of a table by this name.
        before: oids of the tables at the beginning of the session. Their topics are created at their first records.
    """

    def __init__(
        self,
        published: Callable[[], Awaitable[Mapping[int, str]]],
        topic_of: Callable[[str], str],
        before: Collection[int],
    ) -> None:
        self._published = published
        self._topic_of = topic_of
        self._before = frozenset(before)

    async def topics(self) -> Sequence[str]:
        """Return the topics of all new tables.

        Empty if PostgreSQL does not answer; then each topic is created at its first record.
        """
        try:
            listed = await self._published()
        except TransientError:
            return ()
        return [self._topic_of(name) for oid, name in listed.items() if oid not in self._before]

"""Topics that have the records of several tables, because the configuration says so (`topics.shared`).

The rule: a table goes to a shared topic only if a pattern of that topic matches the table. The name of a table alone
never brings the table into a topic that other tables have.

A record names its table in its source block, and in its key, if the topic has `key_field`. Inside of cdcd, each table
has a *share* of the topic: a name for its records, which no other table has. The name of a share is
`<topic>/<schema>.<table>`, and Kafka allows no / in a topic. Whatever finds a table by the topic of a record (faults,
changes beside a snapshot, records that are taken back) therefore finds one table, as it does without shared topics.
Whoever speaks to Kafka, or to a registry, uses `whole_topic`.
"""

from dataclasses import dataclass
from typing import Final

from cdcd.core.catalog.patterns import TablePattern
from cdcd.core.catalog.renaming import Router

_SIGN: Final = "/"

DEFAULT_KEY_FIELD: Final = "__dbz__physicalTableIdentifier"
"""Field of Debezium's ByLogicalTableRouter."""


@dataclass(frozen=True, slots=True)
class SharedTopic:
    """A topic for several tables.

    Attributes:
        tables: patterns of the tables whose records go to the topic.
        key_field: field that keys get besides the columns of the table's key; "": keys get no field.
        key_value: rule that makes the value of the field of the topic that the table would have alone; None: the value
            is that topic.
    """

    topic: str
    tables: tuple[TablePattern, ...]
    key_field: str = DEFAULT_KEY_FIELD
    key_value: Router | None = None

    def has(self, schema: str, name: str) -> bool:
        """Return True if the table's records go to the topic."""
        return any(each.matches(schema, name) for each in self.tables)

    def identifier(self, alone: str) -> str:
        """Return the value of the key field. `alone`: the topic that the table would have without this rule.

        UnreadableError: Java would refuse the replacement.
        """
        return alone if self.key_value is None else self.key_value.routed(alone)


def share_of(topic: str, table: str) -> str:
    """Return the name of a table's share of a topic. `table`: the text of the table."""
    return f"{topic}{_SIGN}{table}"


def whole_topic(name: str) -> str:
    """Return the topic of a share; the name itself if it is a topic."""
    return name.partition(_SIGN)[0]


def is_share(name: str) -> bool:
    """Return True if `name` names a table's share of a topic, and not a whole topic."""
    return _SIGN in name

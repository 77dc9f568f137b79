"""Another table under a topic's name (DROP and CREATE, renames): where its rows begin, and those of the former one end.

The rule: changes of two relations never meet. A table is known by its oid, so attribute numbers of one say nothing of
the other's, and a mirror is one relation's at a time. It becomes the other's where a truncate record in a form of that
one is the first of its records: by this the daemon ends the former rows, and after it come the rows that the new table
had before. Without it (`snapshot.mode: never`, `topics.truncate: false`) nothing says that those rows will come, and
the table stops, with a way on.

A table that was renamed left its rows in the topic of its former name. So a mirror under a new name begins with a
truncate record too, also where no other table had the name.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, way_on
from cdcd.mirror.targets.reduction import is_after
from cdcd.mirror.targets.same_columns import is_other
from cdcd.mirror.targets.state import State

At = tuple[int, int]
"""(commit LSN, number of the event)."""

PATIENCE_S: Final = 10.0
"""How long the truncate record is looked for: partitions show one transaction at slightly different moments."""
_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Part:
    """The changes of a batch that are in one form. `last`: where the last one lies."""

    form: Form
    changes: DataFrame
    last: At


@dataclass(frozen=True, slots=True)
class Takeover:
    """What is left to do with a batch.

    Attributes:
        parts: whose changes are to be applied; all of one relation.
        end: the table becomes another relation's: all rows that it has end here. None: it does not.
    """

    parts: tuple[Part, ...]
    end: At | None = None


def takeover(
    parts: Sequence[Part],
    has: TableSchema | None,
    state: State,
    ahead: Callable[[Sequence[Form]], DataFrame],
    former_name: Callable[[TableSchema], str | None],
) -> Takeover:
    """Which of `parts` a mirror in `state` is to have.

    Args:
        has: the form of the mirror; None: it is not there yet.
        ahead: all changes in these forms from the beginning of the batch to where the topic ends by now.
        former_name: the name that a relation had before (`Descriptions.former_name`).

    Raises:
        IncompatibleSchemaError: another relation has the name, and nothing ends the former one's rows. Or the relation
            of a mirror that is not there yet had another name, and nothing says that the topic has all of its rows.
    """
    old = state.truncated
    fresh = [part for part in parts if old is None or part.last > old]
    newest = max(fresh, key=lambda part: part.last, default=None)
    if newest is None:
        return Takeover(())
    schema = newest.form.schema
    others = [part for part in fresh if is_other(part.form.schema, schema)]
    mine = tuple([part for part in fresh if not is_other(part.form.schema, schema)])
    if not others and (has is None or not is_other(has, schema)):
        former = former_name(schema) if has is None else None
        if former is not None and _end(mine, old or (0, 0), ahead) is None:
            raise IncompatibleSchemaError(
                schema.table,
                f"the table was called {former} before, and no record says that its rows are in this topic too: the"
                " daemon writes none with snapshot.mode: never, snapshot.exclude or topics.truncate: false, and former"
                " versions of the daemon wrote none.",
                way_on(schema.table),
            )
        return Takeover(mine)
    end = _end(mine, max([part.last for part in others], default=old or (0, 0)), ahead)
    if end is None:
        named = "another table" if has is None or has.oid is None else f"the one with oid {has.oid}"
        raise IncompatibleSchemaError(
            schema.table,
            f"another table has this name now (oid {schema.oid} in place of {named}), and no truncate record "
            f"separates the rows of the two tables: the daemon writes no such record with snapshot.mode: never or "
            f"topics.truncate: false.",
            way_on(schema.table),
        )
    return Takeover(mine, end)


def _end(mine: Sequence[Part], after: At, ahead: Callable[[Sequence[Form]], DataFrame]) -> At | None:
    """Where the truncate record lies before which no change of the new relation is. None: there is no such record."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        changes = ahead([part.form for part in mine])
        number = sf.coalesce("event_no", sf.lit(0)).alias("event_no")
        later = changes.filter(is_after(sf.col("commit_lsn"), number, after)).select(
            "op", sf.struct("commit_lsn", number).alias("at")
        )
        first = later.agg(sf.min("at"), sf.min(sf.when(sf.col("op") == "t", sf.col("at")))).head()
        assert first is not None
        if first[1] is not None and first[0] == first[1]:
            return (first[1][0], first[1][1])
        if time.monotonic() > deadline:
            return None
        time.sleep(_PAUSE_S)

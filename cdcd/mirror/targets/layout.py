"""How a mirror keeps its rows: in which partitions and buckets, and what becomes of a row that the source deletes.

The rule: a mirror keeps the layout that it was made with until it is written again (`--relayout`). Partitions and
buckets change nothing that a reader sees, so others in the configuration wait for that. What becomes of deleted rows
changes what the rows mean, so a mirror that was made for the other stops.

A mirror that marks deletes has the column DELETED. A marked row has the last values that the source sent, and the place
of the delete among the changes. So a change that lies before the delete never makes the row live again.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.targets.partitions import OWN, Field

DELETED: Final = "_cdcd_deleted"
"""Column of a mirror that marks deletes: whether the source has deleted the row. It is never null."""


class Deletes(StrEnum):
    """What becomes of a mirror's row that the source deletes: it is removed, or it stays and is marked."""

    REMOVE = "remove"
    MARK = "mark"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a mirror keeps its rows.

    Attributes:
        buckets: how many buckets it has (`buckets`), a power of two; 1: it has none.
        deletes: what becomes of rows that the source deletes.
        fields: by which it is partitioned, before its buckets (`partitions`).
        computed: the fields' values are in columns of the mirror's own, as in Delta.
    """

    buckets: int = 1
    deletes: Deletes = Deletes.REMOVE
    fields: tuple[Field, ...] = ()
    computed: bool = False

    @property
    def own(self) -> tuple[tuple[str, Field], ...]:
        """The mirror's own columns for its fields; none if the format has transforms."""
        if not self.computed:
            return ()
        return tuple([(f"{OWN}{number}", field) for number, field in enumerate(self.fields, 1)])

    @property
    def marks(self) -> bool:
        """Deleted rows stay."""
        return self.deletes is Deletes.MARK


PLAIN: Final = Layout()
"""The layout of a mirror for which the configuration says nothing."""


def laid_out(rows: DataFrame, before: Layout, after: Layout) -> DataFrame:
    """The rows of a mirror as another layout has them, but for their buckets."""
    if before.deletes is after.deletes:
        return rows
    if after.marks:
        return rows.withColumn(DELETED, sf.lit(False))
    return rows.filter(~sf.col(DELETED)).drop(DELETED)

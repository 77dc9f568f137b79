"""What the points of a consistent mirror need of its tables: versions that stay, and tags by which SQL names them.

The rule: a version and its tag live as long as a point names them that is still listed in the table CONTROL. So every
point that is listed can be read, and nothing is kept for a point that is not listed any more.
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.protocol.lsn import Lsn

CONTROL: Final = "consistent"
"""The table that lists the points, the LSNs at which all tables agree. Its columns:

- commit_lsn; lsn, the same as PostgreSQL writes it; batch_id; at, when the point was made.
- `without`: tables that are mirrored but not as of this LSN, because they stopped or were read again later.
- `versions`: by the name of a table without its catalog, the table's version at the point.
- `tag`: the name of that version in each Iceberg table. Null: the point has no tags."""

_TAG: Final = re.compile(r"lsn-([0-9A-F]{1,8})-([0-9A-F]{1,8})")


class Tag(NamedTuple):
    """The tag of a point.

    Attributes:
        commit_lsn: of the point.
        since_lsn: of the oldest point that is listed. Tags of older points go.
    """

    commit_lsn: int
    since_lsn: int

    @property
    def name(self) -> str:
        """As SQL has it, such as lsn-0-16B3748: no engine has to quote more than a string."""
        return f"lsn-{str(Lsn(self.commit_lsn)).replace('/', '-')}"


def tagged_lsn(name: str) -> int | None:
    """The LSN of a tag's point. None: the tag is not the mirror's."""
    found = _TAG.fullmatch(name)
    return None if found is None else int(found[1], 16) << 32 | int(found[2], 16)


@dataclass(frozen=True, slots=True)
class Pinned:
    """What the points that are listed need of one table.

    Attributes:
        since_lsn: of the oldest point. Tags of older points go.
        since_us: when the oldest point was made, in microseconds since 1970.
        version: the table's version at the oldest point that has the table; None: no point has it yet.
    """

    since_lsn: int
    since_us: int
    version: int | None


def listed_point(spark: SparkSession, control: str, commit_lsn: int) -> Row | None:
    """The `versions` and `without` of a point. None: it is not listed, or a former version of cdcd made it.

    Args:
        control: the name in SQL of the table CONTROL, which is there.
    """
    points = spark.table(control)
    if "versions" not in points.columns:
        return None
    row = points.filter(sf.col("commit_lsn") == commit_lsn).select("versions", "without").head()
    return None if row is None or row["versions"] is None else row

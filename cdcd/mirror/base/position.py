"""The position of a base table: how far its data is folded, found in the table's own commits.

Each commit of a fold carries what it was made of: the bounds of its part of the log, and the version that its driver
pinned before. The rule: a commit counts as it says if its parent is the version that it pinned. Otherwise somebody
committed in between, and the fold may have brought back rows that the commit in between deleted, or missed rows that a
rollback took away. So the part of such a fold counts as not folded, and the position is at most that of its parent.

A table format gives the commits as nodes. In Iceberg, a node's parent is the parent of the snapshot, so that a
rollback or another branch leads to other ancestors. In Delta, the parent of a version is the version before it, and the
parent of a RESTORE is the version that it restored. Commits of others (compaction, an owner's statement) carry nothing,
and their position is that of their parent.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

NO_VERSION: Final = ""
"""The pinned version of a table without a commit."""

NO_FORM: Final = ""
"""The digest of the form of a table without rows."""

PROPERTY: Final = "cdcd.fold"
"""The name under which commits carry `Carried`: in the summary of a snapshot of Iceberg, in `userMetadata` of Delta."""

BASE: Final = "1"
"""Value of the property `formats.MADE_BY` of a table that folds keep equal to its source."""

KEPT: Final = "cdcd.position"
"""The property of a table that has the position of one version once more, for the time when its commits are expired."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What the commit of a fold says of itself.

    Attributes:
        fold: id of the fold.
        lsn: bound of the part: the table has every change that committed at or before it.
        since: lower bound of the part. The fold read the changes after it.
        pin: version of the table that the driver saw before the statement. NO_VERSION: the table had no commit.
        form: digest of the form (`columns.digest`) that the rows have after the fold.
        reached: highest bound of a fold that the data may have. It is `lsn`, except in a commit that changes columns of
            a table which is not clean.
        clean: False in such a commit.
        ends: by partition of the topic, the offset after the last record that the table has after the fold.
        state: of a table into which a job brings changes (`given.py`), as JSON. "": of any other table.
    """

    fold: str
    lsn: int
    since: int
    pin: str
    form: str
    reached: int
    clean: bool = True
    ends: Mapping[int, int] = field(default_factory=dict)
    state: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Carried":
        """What `to_json` wrote. ValueError: the text is something else."""
        try:
            data = json.loads(text)
            return cls(
                str(data["fold"]),
                int(data["lsn"]),
                int(data["since"]),
                str(data["pin"]),
                str(data["form"]),
                int(data["reached"]),
                bool(data["clean"]),
                _ends(data),
                str(data.get("state", "")),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no fold is described by {text!r}") from error


@dataclass(frozen=True, slots=True)
class Position:
    """How far a table is folded.

    Attributes:
        lsn: the next fold reads the changes after it.
        reached: highest bound of a fold that the data may have. The next fold's bound is not below it.
        form: digest of the form that the rows have. NO_FORM: the table never had rows.
        clean: the table equals the source at `lsn`. False: it has parts of other positions until the next fold.
        ends: by partition of the topic, an offset below which the table has all records. The table may have later ones.
        is_former: the rows are those of a mirror without a log. They have the form `form` up to `reached`.
        state: as in `Carried`.
    """

    lsn: int = 0
    reached: int = 0
    form: str = NO_FORM
    clean: bool = True
    ends: Mapping[int, int] = field(default_factory=dict)
    is_former: bool = False
    state: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A commit of a table. `parent`: NO_VERSION for the first commit. `carried`: None if it is no fold's commit."""

    parent: str
    carried: Carried | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """The position of one version, kept apart from its commit."""

    version: str
    position: Position

    def to_json(self) -> str:
        return json.dumps(
            {"version": self.version, **asdict(self.position)}, separators=(",", ":"), sort_keys=True
        )

    @classmethod
    def from_json(cls, text: str) -> "Kept | None":
        """What `to_json` wrote. None: the text is something else."""
        try:
            data = json.loads(text)
            position = Position(
                int(data["lsn"]),
                int(data["reached"]),
                str(data["form"]),
                bool(data["clean"]),
                _ends(data),
                bool(data.get("is_former")),
                str(data.get("state", "")),
            )
            return cls(str(data["version"]), position)
        except (AttributeError, ValueError, KeyError, TypeError):
            return None


def _ends(data: Any) -> dict[int, int]:
    """The offsets by partition. A former version of cdcd wrote none."""
    return {int(part): int(end) for part, end in data.get("ends", {}).items()}


def position_of(current: str, nodes: Mapping[str, Node], kept: Kept | None = None) -> Position | None:
    """Return the position of the version `current`.

    Args:
        current: NO_VERSION: the table has no commit yet.
        nodes: the commits that the table still knows, by version.
        kept: a position that was kept apart.

    Returns:
        None: the position is not known, because no commit that is left says it.
    """
    unclean: list[Carried] = []
    version = current
    found: Position | None = None
    while found is None:
        node = nodes.get(version)
        if version == NO_VERSION:
            found = Position()
        elif kept is not None and kept.version == version:
            found = kept.position
        elif node is None:
            return None
        elif node.carried is None:
            version = node.parent
        elif node.carried.pin == node.parent:
            carried = node.carried
            found = Position(
                carried.lsn, carried.reached, carried.form, carried.clean, carried.ends, state=carried.state
            )
        else:
            unclean.append(node.carried)
            version = node.parent
    for fold in reversed(unclean):
        # The offsets belong to the LSN. Those of a lower LSN are not known.
        ends = found.ends if found.lsn <= fold.since else {}
        found = Position(
            min(found.lsn, fold.since),
            max(found.reached, fold.reached),
            found.form,
            clean=False,
            ends=ends,
            state=found.state,
        )
    return found


def is_of(fold: str, nodes: Mapping[str, Node]) -> bool:
    """Whether one of the commits is that of the fold with this id."""
    return any(node.carried is not None and node.carried.fold == fold for node in nodes.values())

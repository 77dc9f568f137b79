"""Partitions of tables that are published as a whole: which of them were attached, detached or truncated.

PostgreSQL publishes rows only. ATTACH, DETACH and DROP of a partition, and TRUNCATE of a partition instead of its
partitioned table, change the rows of the table and send nothing (pgoutput.c, pgoutput_truncate). So the topic no
longer matches the table afterwards.

The rule: the partitions of now are compared with those that were read last. The checkpoint remembers the latter in a
short text (`remembered`), so that a session also finds what changed before it began.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cdcd.core import bounded_json
from cdcd.core.catalog.oids import EXPANDED_MAX, expanded, squeezed
from cdcd.core.facts import Fact
from cdcd.core.facts.tables import PartitionAttached, PartitionDetached, PartitionTruncated
from cdcd.core.pasted import read_table

TEXT_MAX: Final = 1 << 16
"""Maximum length of the text in the checkpoint, which every batch carries. It holds about 20,000 partitions."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A partition that stores rows itself.

    Attributes:
        root: oid of the partitioned table.
        name: `schema.table`; "" for a partition from the checkpoint, which does not keep names.
        file: the file that holds the rows (pg_class.relfilenode), which TRUNCATE replaces.
        columns: checksum of the types of the columns.
        rows: estimated number of rows by the server's statistics, if the partition was attached. The rows of a table
            that was created as a partition are in the stream.
        is_uncounted: True if the server has not counted the pages of that file yet.
        is_attached: True if the table, or one that it is a partition of, was created before it became a partition.
    """

    root: int
    name: str
    file: int
    columns: int
    rows: int = 0
    is_uncounted: bool = False
    is_attached: bool = False

    def is_truncated(self, former: "Leaf", *, is_remembered: bool) -> bool:
        """Return True if the partition has lost all rows since `former` was read.

        VACUUM FULL and CLUSTER also write a new file but count its pages, and ALTER TABLE writes a new file only
        with other column types.

        Args:
            is_remembered: `former` is from the checkpoint. The server may have counted the pages since then, so a new
                file with the same columns counts as truncated.
        """
        return (
            self.file != former.file
            and self.columns == former.columns
            and (self.is_uncounted or is_remembered)
        )


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitioned tables that are published as a whole, and their partitions.

    Attributes:
        roots: the partitioned tables as `schema.table`, by oid; the names are "" if they are from the checkpoint.
        leaves: the partitions that store rows, by oid.
        is_remembered: True if they are from the checkpoint.
    """

    roots: Mapping[int, str]
    leaves: Mapping[int, Leaf]
    is_remembered: bool = False


def remembered(partitions: Partitions) -> tuple[str, list[str]]:
    """Return the text for the checkpoint, and the names of the tables that it leaves out to keep its limit.

    Those with the most partitions are left out first. The text is "" if there are no partitioned tables.
    """
    by_root: dict[int, list[int]] = {oid: [] for oid in sorted(partitions.roots)}
    for oid in sorted(partitions.leaves):
        root = partitions.leaves[oid].root
        if root in by_root:
            by_root[root].append(oid)
    left_out: list[str] = []
    while by_root:
        groups = [[root, *_columns_of(partitions.leaves, oids)] for root, oids in by_root.items()]
        text = squeezed(json.dumps(groups, separators=(",", ":")).encode())
        if len(text) <= TEXT_MAX:
            return text, left_out
        largest = max(by_root, key=lambda root: len(by_root[root]))
        del by_root[largest]
        left_out.append(partitions.roots[largest])
    return "", left_out


def _columns_of(leaves: Mapping[int, Leaf], oids: Iterable[int]) -> list[list[int]]:
    """Return three lists: differences of the oids, files less the oids, and checksums of columns, "as before" as 0."""
    deltas, files, columns = [], [], []
    last, same = 0, -1
    for oid in oids:
        leaf = leaves[oid]
        deltas.append(oid - last)
        files.append(leaf.file - oid)
        columns.append(0 if leaf.columns == same else leaf.columns + 1)
        last, same = oid, leaf.columns
    return [deltas, files, columns]


def recalled(text: str) -> Partitions:
    """Read back the text of `remembered`.

    Raises:
        ValueError, IndexError: the text is not one that `remembered` writes.
    """
    roots: dict[int, str] = {}
    leaves: dict[int, Leaf] = {}
    if len(text) > TEXT_MAX:
        raise ValueError(f"the list of partitions has {len(text)} characters, and {TEXT_MAX} are allowed")
    groups = bounded_json.parse(expanded(text), EXPANDED_MAX) if text else []
    for group in bounded_json.items(groups):
        root, deltas, files, columns = bounded_json.items(group)
        roots[bounded_json.count(root)] = ""
        oid, same = 0, 0
        for delta, file, sum_ in zip(
            bounded_json.items(deltas), bounded_json.items(files), bounded_json.items(columns), strict=True
        ):
            oid += bounded_json.count(delta)
            same = bounded_json.count(sum_) - 1 if sum_ else same
            leaves[oid] = Leaf(root, "", oid + bounded_json.whole(file), same)
    return Partitions(roots, leaves, is_remembered=True)


def gone(before: Partitions, now: Partitions) -> list[int]:
    """Return the oids of partitions that left their table, if the table is still published as a whole."""
    return [
        oid
        for oid, leaf in before.leaves.items()
        if leaf.root in now.roots and (oid not in now.leaves or now.leaves[oid].root != leaf.root)
    ]


def happened(before: Partitions, now: Partitions, names: Mapping[int, str]) -> list[Fact]:
    """Return the facts about partitions that changed between two reads. Partitions of a new table give no facts.

    Args:
        names: `schema.table` of partitions in `gone` that still exist as tables, by oid.
    """
    facts: list[Fact] = []
    for oid, leaf in now.leaves.items():
        former = before.leaves.get(oid)
        table = now.roots[leaf.root]
        if former is None or former.root != leaf.root:
            if leaf.root in before.roots:
                command = read_table(table) if leaf.rows else ""
                facts.append(
                    PartitionAttached(table=table, partition=leaf.name, rows=leaf.rows, command=command)
                )
        elif leaf.is_truncated(former, is_remembered=before.is_remembered):
            facts.append(PartitionTruncated(table=table, partition=leaf.name))
    for oid in gone(before, now):
        left = before.leaves[oid]
        name = names.get(oid) or left.name or f"a partition that was dropped (oid {oid})"
        facts.append(PartitionDetached(table=now.roots[left.root], partition=name))
    return facts


def to_read_again(facts: Iterable[Fact]) -> list[str]:
    """Return the partitioned tables whose topics have other rows than the table, each once."""
    tables: dict[str, None] = {}
    for fact in facts:
        if isinstance(fact, PartitionDetached | PartitionTruncated) or (
            isinstance(fact, PartitionAttached) and fact.rows
        ):
            tables[fact.table] = None
    return list(tables)

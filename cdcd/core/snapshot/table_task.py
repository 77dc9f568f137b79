"""A table that is to be read, with what was read of it so far (the ranges of its pages), and its form in the checkpoint
record.

`progress.py` describes what pages and owed rows mean.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cdcd.core import bounded_json
from cdcd.core.catalog.oids import EXPANDED_MAX, expanded, squeezed

Pages = tuple[tuple[int, int], ...]
"""Ranges of page numbers, each from its first number up to but not including its second; sorted, and without
touching each other."""


def union(done: Pages, begin: int, end: int) -> Pages:
    """Return the ranges with one more range, joined where they touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted((*done, (begin, end))):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def gaps(done: Pages, pages: int) -> Pages:
    """Return which of the first `pages` pages are not in the ranges."""
    found: list[tuple[int, int]] = []
    at = 0
    for begin, end in done:
        if begin > at:
            found.append((at, begin))
        at = max(at, end)
    if at < pages:
        found.append((at, pages))
    return tuple(found)


KeyValue = tuple[bool, bytes]
"""A column's value as pgoutput sent it: whether it is in binary form, and its bytes; never NULL."""

Key = tuple[KeyValue, ...]
"""The values of a row's key columns, in the order of the columns."""

OWED_KEYS_MAX: Final = 256
OWED_BYTES_MAX: Final = 2500
"""Maximum number of owed keys that the record keeps for a table, and maximum of their bytes. If there are more, it
keeps none.

So the record stays below 64 kB with 10,000 tables whose names are known (37 kB), four of which owe rows.
"""


def owed_text(keys: Iterable[Key]) -> str:
    """Return keys in the form of the record: Base85 of compressed JSON."""
    values = [[_value_json(value) for value in key] for key in keys]
    return squeezed(json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode())


def form_of(columns: str) -> int:
    """Return 32 bits that differ when the table's columns (`SourceTable.columns`) are altered."""
    return zlib.crc32(columns.encode())


@dataclass(frozen=True, slots=True)
class Part:
    """A table that has pages: a plain table, or a leaf of a partitioned one."""

    oid: int
    filenode: int
    pages: int
    size: int
    """Bytes on disk at the time of the plan, including values that are stored out of line (TOAST)."""
    done: Pages = ()

    @property
    def pages_done(self) -> int:
        return sum(end - begin for begin, end in self.done)

    @property
    def is_done(self) -> bool:
        return self.pages_done >= self.pages


@dataclass(frozen=True, slots=True)
class TableTask:
    """A published table that is to be read.

    Attributes:
        name: `schema.table`, for people; the table is identified by its `oid`, which is 0 until it is looked up.
        request: what requested the reading; "" for the initial snapshot.
        where: SQL condition on rows; "" for all rows.
        parts: the parts that are to be read; None until the table is planned.
        form: checksum of the columns at the time of the plan (`form_of`); 0 until the table is planned.
        owed: keys of rows that must be read again, because one of their values was never sent.
        unsettled: whether there are more owed keys than the record can have; `owed` is then empty.
        ended: whether the earlier rows of its topic were ended, because the table has no key. All its rows must
            then be read.
        askers: names of the requests that wait for the table.
        asked, began: when the reading was requested and begun, in Unix seconds; 0 if not known.
        number: identifies this task within the process; it is not in the record.
    """

    name: str
    oid: int = 0
    request: str = ""
    where: str = ""
    parts: tuple[Part, ...] | None = None
    form: int = 0
    rows: int = 0
    owed: tuple[Key, ...] = ()
    unsettled: bool = False
    ended: bool = False
    askers: tuple[str, ...] = ()
    asked: int = 0
    began: int = 0
    number: int = field(default=0, compare=False)

    @property
    def is_done(self) -> bool:
        """True if every page was delivered."""
        return self.parts is not None and all(part.is_done for part in self.parts)

    @property
    def has_begun(self) -> bool:
        """True if rows of the table were delivered, after which a later plan continues."""
        return any(part.done for part in self.parts or ())

    @property
    def pages(self) -> int:
        return sum(part.pages for part in self.parts or ())

    @property
    def pages_done(self) -> int:
        return sum(part.pages_done for part in self.parts or ())

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts or ())

    @property
    def share(self) -> float:
        """Share of the table that is read, from 0 to 1."""
        return self.pages_done / self.pages if self.pages else float(self.is_done)


def task_json(task: TableTask) -> dict[str, Any]:
    """Return the task for the checkpoint record, without what a restart looks up again."""
    fields: dict[str, Any] = {"name": task.name, "oid": task.oid}
    fields |= {
        name: value
        for name, value in (
            ("request", task.request),
            ("where", task.where),
            ("rows", task.rows),
            ("unsettled", task.unsettled),
            ("ended", task.ended),
            ("asked", task.asked),
            ("began", task.began),
        )
        if value
    }
    if task.askers not in ((), (task.request,)):
        fields["askers"] = list(task.askers)
    elif task.askers:
        fields["named"] = True
    if task.owed:
        fields["owed"] = owed_text(task.owed)
    if task.parts is not None and task.has_begun:
        fields["form"] = task.form
        fields["parts"] = [
            [part.oid, part.filenode, part.pages, part.size, [page for pages in part.done for page in pages]]
            for part in task.parts
        ]
    return fields


def _value_json(value: KeyValue) -> list[Any]:
    is_binary, data = value
    return [1, base64.b64encode(data).decode("ascii")] if is_binary else [0, data.decode()]


def _owed_from(text: str) -> tuple[Key, ...]:
    if not text:
        return ()
    keys = bounded_json.items(bounded_json.parse(expanded(text), EXPANDED_MAX))
    return tuple(tuple(_value_from(*value) for value in key) for key in keys)


def _value_from(is_binary: int, text: str) -> KeyValue:
    value = bounded_json.name(text)
    return (True, base64.b64decode(value, validate=True)) if is_binary else (False, value.encode())


def task_from(fields: Mapping[str, Any]) -> TableTask:
    """Return the task that `task_json` wrote.

    Raises ValueError, KeyError, TypeError or IndexError if it is something else.
    """
    count, name = bounded_json.count, bounded_json.name
    parts = fields.get("parts")
    request = name(fields.get("request", ""))
    askers = (request,) if fields.get("named") else tuple(map(name, fields.get("askers", ())))
    return TableTask(
        name=name(fields["name"]),
        oid=count(fields["oid"]),
        request=request,
        where=name(fields.get("where", "")),
        rows=count(fields.get("rows", 0)),
        form=count(fields.get("form", 0)),
        parts=None if parts is None else tuple(_part_from(*part) for part in parts),
        owed=_owed_from(name(fields.get("owed", ""))),
        unsettled=bool(fields.get("unsettled")),
        ended=bool(fields.get("ended")),
        askers=askers,
        asked=count(fields.get("asked", 0)),
        began=count(fields.get("began", 0)),
    )


def _part_from(oid: int, filenode: int, pages: int, size: int, done: list[int]) -> Part:
    count = bounded_json.count
    found = [count(page) for page in done]
    return Part(
        count(oid),
        count(filenode),
        count(pages),
        count(size),
        tuple(zip(found[::2], found[1::2], strict=True)),
    )

"""Statements that write rows: which rows they may change, what they put in them, what of that is in the WAL."""

from random import Random
from typing import Final

from tests.sim.catalog import Definition, Row
from tests.sim.database import Database, Transaction
from tests.sim.frames import TOASTED
from tests.sim.heap import Version
from tests.sim.settings import Settings
from tests.sim.wal import Change

NUMBERS: Final = 100


class Writer:
    """Writes rows for transactions; each method gives the changes for one WAL record, () if it would have to wait."""

    def __init__(self, settings: Settings, rng: Random, database: Database) -> None:
        self.settings = settings
        self.rng = rng
        self.database = database
        self.removed_untold: set[int] = set()
        """Published tables of which rows were deleted by changes that an old server does not send."""

    def statement(
        self, transaction: Transaction, sub: int, definition: Definition, number: int
    ) -> list[Change]:
        if number > 1:
            return self._insert(transaction, sub, definition, number)
        draw = self.rng.random()
        if draw < self.settings.p_insert:
            return self._insert(transaction, sub, definition, 1)
        rows = self.database.heap(definition).current(transaction.xid)
        if not rows:
            return self._insert(transaction, sub, definition, 1)
        version = self.rng.choice(rows)
        if draw < self.settings.p_insert + self.settings.p_delete:
            return [self._delete(transaction, sub, definition, version)]
        return self._update(transaction, sub, definition, version)

    def _insert(
        self, transaction: Transaction, sub: int, definition: Definition, number: int
    ) -> list[Change]:
        heap = self.database.heap(definition)
        changes: list[Change] = []
        for _ in range(number):
            key = self._key(definition)
            if not heap.is_free(definition, key, transaction.xid):
                continue
            row: dict[int, bytes | None] = dict(zip(definition.key_attnums, key, strict=True))
            event = self.database.event(definition.oid, row)
            for column in definition.columns:
                if column.attnum not in row:
                    row[column.attnum] = self._value(definition, column.attnum, event)
            changes.append(self._change("I", transaction, sub, definition, event, row))
            heap.insert(sub, row, self.rng, self.database.is_held)
        return changes

    def _delete(self, transaction: Transaction, sub: int, definition: Definition, version: Version) -> Change:
        version.xmax = sub
        return self._change(
            "D", transaction, sub, definition, self.database.event(definition.oid), version.row
        )

    def _update(
        self, transaction: Transaction, sub: int, definition: Definition, version: Version
    ) -> list[Change]:
        rng, database = self.rng, self.database
        heap = database.heap(definition)
        row: dict[int, bytes | None] = {
            column.attnum: definition.value(version.row, column) for column in definition.columns
        }
        if rng.random() < self.settings.p_key_change:
            key = self._key(definition)
            if not heap.is_free(definition, key, transaction.xid):
                return []
            row.update(zip(definition.key_attnums, key, strict=True))
        event = database.event(definition.oid, row)
        kept: list[int] = []
        for column in definition.columns:
            attnum = column.attnum
            if column.name in definition.key:
                continue
            if attnum == definition.event_attnum:
                row[attnum] = b"%d" % event
            elif not column.toast:
                if rng.random() < 0.5:
                    row[attnum] = self._value(definition, attnum, event)
            elif rng.random() < self.settings.p_keep_toast:
                value = row[attnum]
                if value is not None and value.startswith(TOASTED):
                    kept.append(attnum)
            else:
                row[attnum] = self._value(definition, attnum, event)
        change = self._change("U", transaction, sub, definition, event, row)
        change.old = version.row
        change.kept = tuple(kept)
        if any(row[attnum] != version.row.get(attnum) for attnum in definition.key_attnums):
            self.note_removal(definition, change.published)
        version.xmax = sub
        heap.insert(sub, row, rng, database.is_held)
        return [change]

    def _change(
        self, what: str, transaction: Transaction, sub: int, definition: Definition, event: int, row: Row
    ) -> Change:
        change = Change(what, transaction.xid, sub, oid=definition.oid, event=event)
        change.definition = definition
        change.row = row
        change.published = self.publishes(transaction, definition)
        if what == "D":
            self.note_removal(definition, change.published)
        return change

    def note_removal(self, definition: Definition, is_sent: bool) -> None:
        """Rows are deleted, or get other keys. An old server does not send that in every transaction."""
        if definition.published and not is_sent:
            self.removed_untold.add(definition.oid)

    def publishes(self, transaction: Transaction, definition: Definition) -> bool:
        """Whether the transaction's changes of the table are sent.

        Where servers do not tell open transactions of a change of the publication (before mid-2025), the first
        change of a table decides for all of them, as pgoutput's cache does.
        """
        if self.settings.distributes:
            return definition.published
        return transaction.sends.setdefault(definition.oid, definition.published)

    def _key(self, definition: Definition) -> tuple[bytes, ...]:
        most = self.settings.keys_max
        if len(definition.key_attnums) == 1:
            return (b"%d" % int(self.rng.random() * most),)
        side = max(2, most // 3)
        return (b"%d" % int(self.rng.random() * 3), b"%d" % int(self.rng.random() * side))

    def _value(self, definition: Definition, attnum: int, event: int) -> bytes | None:
        """A new value for a column that is no part of the key."""
        draw = self.rng.random()
        if attnum == definition.event_attnum:
            return b"%d" % event
        if attnum in definition.toast_attnums:
            return None if draw < 0.1 else (b"%b%d" % (TOASTED if draw < 0.8 else b"s", event))
        if definition.column("n").attnum == attnum:
            return b"%d" % int(draw * NUMBERS)
        if self.settings.protected:
            return None if draw < 0.3 else b"x%d-%d" % (attnum, event)
        return None if draw < 0.3 else b"x%d" % event

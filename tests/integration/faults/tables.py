"""Tables with faults of their own, beside a table `other` without a fault: what the tests of such tables share."""

import json
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.integration.daemon import until
from tests.integration.faults.trial import Trial

LARGE = random.Random(3).randbytes(50_000).hex()
"""Compression does not make it small."""

OTHERS_S = 10.0
"""How long the row of another table may take on a loaded machine. Alone, it takes less than two seconds."""


@dataclass(frozen=True)
class TableFault:
    """A table with a fault.

    Attributes:
        table: its name in the schema public.
        fault: the kind of fault that is expected.
        columns: of the table; `id` is the key unless said otherwise.
        before: SQL before the daemon starts.
        breaks: SQL that makes the fault, while the daemon runs.
        mends: SQL that removes the cause.
    """

    table: str
    fault: str
    columns: str = "id int PRIMARY KEY, note text"
    before: str = ""
    breaks: str = "INSERT INTO {t} VALUES (2, 'at fault')"
    mends: str = ""

    @property
    def name(self) -> str:
        return f"public.{self.table}"


def envelopes(one: Trial, topic: str) -> list[dict[str, Any]]:
    """The envelopes of a topic, as a reader with `read_committed` sees them."""
    return [json.loads(value) for _, value, _ in one.records(topic) if value is not None]


def folded(changes: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """The rows of a table by the changes of its topic: `note` by `id`."""
    rows: dict[int, str] = {}
    for each in changes:
        if each["op"] == "t":
            rows.clear()
        elif each["op"] == "d":
            rows.pop(each["before"]["id"], None)
        else:
            rows[each["after"]["id"]] = each["after"]["note"]
    return rows


def insert_other(one: Trial, number: int, topic: str, timeout_s: float) -> float:
    """Insert a row into the table `other`, and return the seconds until its topic has a record of it."""
    one.execute("INSERT INTO other VALUES (%s)", number)
    began = time.monotonic()
    until(
        lambda: number in [json.loads(key)["id"] for key, _, _ in one.records(topic)] or None,
        f"the row {number}: {one.daemon.last_words()}",
        timeout_s,
    )
    return time.monotonic() - began


def told_aside(one: Trial) -> dict[str, str]:
    """The fault of each table that the daemon has told as set aside, by the table's name."""
    return {event["table"]: event["fault"] for event in one.daemon.events if event["event"] == "table.aside"}

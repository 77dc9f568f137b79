"""What strangers send with the prefix `cdcd.snapshot`: requests that are meant well, and others."""

import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.sim.catalog import SCHEMA

PREFIX: Final = "cdcd.snapshot"

RESUME: Final = b'{"action": "resume"}'

PARTITIONED: Final = "partitioned"
"""The name of the partitioned table that all tables are the partitions of, where the settings have one."""

CONDITIONS: Final = ("n < 50", "event % 2 = 0", "true")
"""That PostgreSQL takes, and which rows they are true for is known (`client.holds`)."""

ATTACKS: Final = (
    "false) OR (true",
    "no_such = 1",
    "1 / (n - 3) > 0",
    "attacker()",
    "pg_sleep(3600) IS NULL",
    "true; DROP TABLE t1",
    "'" + "x" * 9000 + "' = ''",
)

KINDS: Final = ("start", "pause", "resume", "cancel", "where", "hostile")


def draw_request(rng: Random, names: list[str], kinds: tuple[str, ...]) -> bytes:
    """The content of a message."""
    return _KINDS[rng.choice(kinds)](rng, [f"{SCHEMA}.{name}" for name in names] or ["public.none"])


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def _start(rng: Random, names: list[str]) -> bytes:
    tables = rng.sample(names, min(len(names), rng.choice((1, 1, 2))))
    fields: dict[str, Any] = {"action": "start", "tables": tables}
    if rng.random() < 0.5:
        fields["id"] = f"r{int(rng.random() * 3)}"
    return _encoded(fields)


def _partitioned(rng: Random, names: list[str]) -> bytes:
    return _encoded({"action": "start", "tables": [f"{SCHEMA}.{PARTITIONED}"], "id": "partitioned"})


def _pause(rng: Random, names: list[str]) -> bytes:
    return _encoded({"action": "pause"})


def _resume(rng: Random, names: list[str]) -> bytes:
    return _encoded({"action": "resume"})


def _cancel(rng: Random, names: list[str]) -> bytes:
    return _encoded({"action": "cancel", "tables": rng.sample(names, 1) if rng.random() < 0.8 else []})


def _where(rng: Random, names: list[str]) -> bytes:
    return _encoded(
        {"action": "start", "tables": [rng.choice(names)], "where": rng.choice(CONDITIONS), "id": "where"}
    )


def _hostile(rng: Random, names: list[str]) -> bytes:
    draw = rng.random()
    if draw < 0.4:
        return _encoded({"action": "start", "tables": [rng.choice(names)], "where": rng.choice(ATTACKS)})
    if draw < 0.55:
        many = [f"public.no_such_{number}" for number in range(1000)]
        return _encoded({"action": "start", "tables": many, "where": "x" * 10_000, "id": "y" * 10_000})
    if draw < 0.7:
        many = [f"public.no_such_table_{rng.random()}" for _ in range(rng.choice((3, 1000)))]
        return _encoded({"action": "start", "tables": many, "id": "z" * 200})
    if draw < 0.8:
        return _encoded({"action": "start", "tables": ["pg_catalog.pg_authid", "public.no_such"]})
    return rng.choice(
        (
            b"",
            b"\xff\x00\xfe",
            b"null",
            b"[" * 5000,
            b'{"action": "stop"}',
            b'{"action": "start"}',
            b'{"action": "start", "tables": "public.t1"}',
            b'{"action": "start", "tables": [7]}',
            b'{"action": "cancel", "where": "x"}',
            b'{"action": "start", "tables": ["public.t1"], "more": 1}',
            b'{"action": "start", "tables": ["public.t1"], "pipeline": "another"}',
            b'{"action": "start", "tables": ["public.' + b"t" * 100_000 + b'"]}',
        )
    )


_KINDS: Final[dict[str, Callable[[Random, list[str]], bytes]]] = {
    "start": _start,
    "partitioned": _partitioned,
    "pause": _pause,
    "resume": _resume,
    "cancel": _cancel,
    "where": _where,
    "hostile": _hostile,
}

"""Ten thousand secrets in forty types, on every path through a daemon that protects them, are in no byte of its output.

Each column of the table `vault` is hashed, encrypted, masked or excluded. The rows come by a snapshot, in small, large
and prepared transactions, while Kafka is away, with their old rows, and too large for Kafka. The daemon is killed on
the way. Looked through are all topics, the spool on disk, the pages, and the log at level debug. cdcd refuses
`spool.durable` and `record.directory` beside rules, because their files hold values in clear.

A second pipeline without rules reads the same WAL. The traces that are looked for are parts of the values, as SQL has
them and as the records of that pipeline have them. Its topics must hold as many traces as there are values: otherwise
the search itself would be wrong.

    python -m tests.chaos.secrets [--rows 250] [--seed N]
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import psycopg

from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.created_topics import create_topics
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.test_columns import everything, open_files
from tests.scratch import scratch_folder

Dice = random.Random

KEYS: Final = {"hash_key": "correct horse battery staple", "encryption_key": "A" * 43 + "="}
ACTIONS: Final = ("hash", "encrypt", "exclude", "mask")
TRACE: Final = re.compile(rb"[0-9A-Za-z+/=_-]{8,}")
NUMBER: Final = re.compile(rb"(?<![0-9A-Za-z_.])[0-9]{8,}(?![0-9A-Za-z_])")
LIMIT_S: Final = 300.0
DEFAULT: Final = "s3cr3tdefault0123456789"
MOVED: Final = 100_000
"""What an update of the key adds to it."""

LARGEST: Final = 20_000_000
"""Bytes of a record that the dead letters take."""

LARGE: Final = {"oversized": "dead_letter", "properties": {"message.max.bytes": LARGEST}}


def _digits(dice: Dice, count: int) -> str:
    return str(dice.randrange(10 ** (count - 1), 10**count))


def _word(dice: Dice) -> str:
    return f"s3cr3t{dice.getrandbits(64):016x}"


def _hex(dice: Dice, count: int) -> str:
    return "".join(dice.choices("0123456789abcdef", k=count))


def _uuid(dice: Dice) -> str:
    return "-".join(_hex(dice, count) for count in (8, 4, 4, 4, 12))


def _bits(dice: Dice, count: int) -> str:
    return "".join(dice.choices("01", k=count))


def _micros(dice: Dice) -> str:
    day = f"2{dice.randrange(1000):03}-{dice.randrange(1, 13):02}-{dice.randrange(1, 29):02}"
    return f"{day} 01:02:03.{_digits(dice, 6)}"


def _point(dice: Dice) -> str:
    return f"({_digits(dice, 10)},{_digits(dice, 10)})"


TYPES: Final[dict[str, Callable[[Dice], str]]] = {
    "text": _word,
    "varchar(99)": _word,
    "char(40)": _word,
    "name": _word,
    "bytea": lambda dice: f"\\x{_hex(dice, 40)}",
    "uuid": _uuid,
    "json": lambda dice: json.dumps({"k": _word(dice)}),
    "jsonb": lambda dice: json.dumps({"k": _word(dice)}),
    "xml": lambda dice: f"<a>{_word(dice)}</a>",
    "numeric": lambda dice: _digits(dice, 20),
    "numeric(30,5)": lambda dice: f"{_digits(dice, 18)}.5",
    "bigint": lambda dice: _digits(dice, 18),
    "integer": lambda dice: str(dice.randrange(10**9, 2**31)),
    "oid": lambda dice: str(dice.randrange(10**9, 2**32)),
    "money": lambda dice: f"{_digits(dice, 14)}.25",
    "double precision": lambda dice: f"{_digits(dice, 15)}",
    "timestamp": _micros,
    "timestamptz": lambda dice: f"{_micros(dice)}+00",
    "inet": lambda dice: ":".join(_hex(dice, 4) for _ in range(8)),
    "macaddr8": lambda dice: "".join(_hex(dice, 2) for _ in range(8)),
    "bit(64)": lambda dice: _bits(dice, 64),
    "bit varying(70)": lambda dice: _bits(dice, 65),
    "point": _point,
    "box": lambda dice: f"{_point(dice)},{_point(dice)}",
    "lseg": lambda dice: f"[{_point(dice)},{_point(dice)}]",
    "path": lambda dice: f"({_point(dice)},{_point(dice)})",
    "polygon": lambda dice: f"({_point(dice)},{_point(dice)})",
    "circle": lambda dice: f"<{_point(dice)},{_digits(dice, 9)}>",
    "line": lambda dice: f"{{1,2,{_digits(dice, 12)}}}",
    "int8range": lambda dice: f"[{_digits(dice, 15)},{10**17})",
    "numrange": lambda dice: f"[{_digits(dice, 15)},{10**17})",
    "tsvector": _word,
    "tsquery": _word,
    "text[]": lambda dice: f"{{{_word(dice)},{_word(dice)}}}",
    "bigint[]": lambda dice: f"{{{_digits(dice, 17)}}}",
    "uuid[]": lambda dice: f"{{{_uuid(dice)}}}",
    "numeric[]": lambda dice: f"{{{_digits(dice, 21)}}}",
    "hstore": lambda dice: f"k=>{_word(dice)}",
    "citext": _word,
    "ltree": lambda dice: f"top.{_word(dice)}",
}
"""Each type with its secrets."""


def rules() -> dict[str, Any]:
    """What becomes of each column; the default of a later column is encrypted."""
    found: dict[str, Any] = {"hash": [], "encrypt": [], "exclude": [], "mask": {}, **KEYS}
    for number in range(len(TYPES)):
        name, action = f"public.vault.c{number}", ACTIONS[number % len(ACTIONS)]
        if action == "mask":
            found["mask"][name] = "***"
        else:
            found[action].append(name)
    found["encrypt"].append("public.vault.later")
    found["hash"].append("public.keyed.id")
    return found


def traces(values: Any) -> Iterator[bytes]:
    """What of a value can be recognised, wherever it is."""
    if isinstance(values, dict | list):
        for each in values.values() if isinstance(values, dict) else values:
            yield from traces(each)
    elif isinstance(values, str):
        yield from TRACE.findall(values.encode())
    elif isinstance(values, int | float) and not isinstance(values, bool):
        yield from TRACE.findall(json.dumps(values).encode())


class Secrets:
    """Traces of values. A number is looked for as a whole one, because a few digits are in many numbers by chance."""

    def __init__(self) -> None:
        self._owners: dict[bytes, set[tuple[int, str]]] = {
            trace: {(-1, "later")} for trace in traces(DEFAULT)
        }

    def add(self, row: int, column: str, value: Any) -> None:
        for trace in traces(value):
            self._owners.setdefault(trace, set()).add((row, column))

    def freeze(self) -> tuple[list[bytes], set[bytes]]:
        """Words and numbers, without what several values have in common."""
        single = [trace for trace, owners in self._owners.items() if len(owners) == 1]
        return [each for each in single if not each.isdigit()], {each for each in single if each.isdigit()}


def found_in(data: bytes, words: list[bytes], numbers: set[bytes]) -> list[bytes]:
    """The traces that the data hold."""
    return [*(word for word in words if word in data), *(numbers & set(NUMBER.findall(data)))]


class Vault:
    """The source: a table with a column of each type, and one whose key is a secret."""

    def __init__(self, server: PostgresServer, rows: int, seed: int) -> None:
        self.dsn = server.dsn(options="-c logical_decoding_work_mem=64kB")
        dice = random.Random(seed)
        self.values: list[list[str]] = [[make(dice) for make in TYPES.values()] for _ in range(rows)]
        columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(TYPES))
        for statement in (
            *(f"CREATE EXTENSION {name}" for name in ("hstore", "citext", "ltree")),
            f"CREATE TABLE vault (id int PRIMARY KEY, {columns})",
            "CREATE TABLE keyed (id text PRIMARY KEY, note text)",
        ):
            server.execute(statement)

    def insert(self, connection: psycopg.Connection[Any], numbers: range) -> None:
        casts = ", ".join(f"%s::{kind}" for kind in TYPES)
        for number in numbers:
            connection.execute(
                f"INSERT INTO vault VALUES (%s, {casts})".encode(), (number, *self.values[number])
            )
            connection.execute("INSERT INTO keyed VALUES (%s, 'x')", (self.values[number][0] + "k",))


def act(vault: Vault, daemon: Daemon, broker: KafkaBroker) -> Iterator[tuple[str, bytes]]:
    """Every kind of change, and what lies on disk meanwhile."""
    rows = len(vault.values)
    half = rows // 2
    third = (rows - half) // 3
    with psycopg.connect(vault.dsn, autocommit=True) as connection:
        vault.insert(connection, range(half, half + third))
        with connection.transaction():
            vault.insert(connection, range(half + third, half + 2 * third))
            connection.execute(f"UPDATE vault SET id = id + {MOVED} WHERE id % 7 = 0".encode())
            # All rows again and again: more than the spool keeps in memory.
            for _ in range(8):
                connection.execute("UPDATE vault SET c0 = c0")
            daemon.await_event("spool.spilled")
            for content in until(lambda: list(open_files(daemon)) or None, "nothing is on disk"):
                yield "spool", content
        daemon.kill()
        daemon.start()
        daemon.await_streaming()
    with psycopg.connect(vault.dsn) as connection:
        vault.insert(connection, range(half + 2 * third, rows))
        connection.execute("PREPARE TRANSACTION 'vault'")
    with psycopg.connect(vault.dsn, autocommit=True) as connection:
        connection.execute("COMMIT PREPARED 'vault'")
        connection.execute(f"ALTER TABLE vault ADD later text DEFAULT '{DEFAULT}'".encode())
        connection.execute("UPDATE vault SET later = later")
        connection.execute("ALTER TABLE vault REPLICA IDENTITY FULL")
        connection.execute("UPDATE keyed SET id = id || 'z' WHERE note = 'x' AND random() < 0.3")
        # Encrypted, it is larger than what Kafka takes. Random digits do not compress.
        connection.execute(
            "UPDATE vault SET c33 = ARRAY(SELECT vault.c0 || md5(random()::text) FROM generate_series(1, 60000)) "
            f"WHERE id = (SELECT min(id) FROM vault WHERE id > {MOVED})".encode()
        )
        daemon.await_event("record.oversized")
        broker.stop()
        daemon.await_event("kafka.unreachable")
        connection.execute("UPDATE vault SET c3 = c3 WHERE id % 3 = 0")
        connection.execute("DELETE FROM vault WHERE id % 5 = 0")
        broker.start()


def run(rows: int, seed: int, folder: Path) -> bool:
    """True if nothing was found. What was looked through is printed."""
    with ExitStack() as stack:
        server = stack.enter_context(
            PostgresServer(
                18, folder / "postgres", settings={"max_prepared_transactions": "5", "wal_level": "logical"}
            )
        )
        broker, control = (
            stack.enter_context(KafkaBroker(folder / name)) for name in ("kafka", "kafka-control")
        )
        vault = Vault(server, rows, seed)
        with psycopg.connect(vault.dsn, autocommit=True) as connection:
            vault.insert(connection, range(rows // 2))
        plain = configuration(
            "plain",
            vault.dsn,
            control.bootstrap_servers,
            snapshot={"mode": "initial"},
            kafka=LARGE,
        )
        for servers, name in ((control.bootstrap_servers, "plain"), (broker.bootstrap_servers, "vault")):
            create_topics(servers, f"{name}.dead_letter", config={"max.message.bytes": str(LARGEST)})
        protected = configuration(
            "vault",
            vault.dsn,
            broker.bootstrap_servers,
            columns=rules(),
            snapshot={"mode": "initial", "chunk_bytes": 65_536},
            postgres={"two_phase": True},
            spool={"memory_bytes_max": 65_536},
            kafka=LARGE,
            log={"level": "debug"},
        )
        reader = stack.enter_context(Daemon(folder / "plain", plain))
        daemon = stack.enter_context(Daemon(folder / "vault", protected))
        for each in (reader, daemon):
            each.start()
            each.await_event("snapshot.finished", timeout_s=LIMIT_S)
            each.await_streaming()
        places = list(act(vault, daemon, broker))
        for slot in ("cdcd_vault", "cdcd_plain"):
            await_flushed(vault.dsn, slot, LIMIT_S)
        places += [("topics", data) for data in everything(broker, "vault")]
        places += [(page, daemon.page(page).encode()) for page in ("/", "/v1/status", "/metrics")]
        assert daemon.stop() == 0, daemon.last_words()
        places.append(("log", daemon.output(all_lives=True).encode()))
        in_control = b"\n".join(everything(control, "plain"))
    secrets = Secrets()
    for row, values in enumerate(vault.values):
        for column, value in enumerate(values):
            secrets.add(row, f"c{column}", value)
    for data in in_control.split(b"\n"):
        with suppress(ValueError):
            after = (json.loads(data) or {}).get("after") or {}
            for name, value in after.items() if "c0" in after else ():
                # What an element repeats is of another column.
                if len(str(value)) < 10_000 and name not in {"id", "later"}:
                    secrets.add(after["id"] % MOVED, name, value)
    words, numbers = secrets.freeze()
    seen = len(found_in(in_control, words, numbers))
    by_place: dict[str, list[bytes]] = {}
    for place, content in places:
        by_place.setdefault(place, []).append(content)
    found = 0
    for place, contents in by_place.items():
        data = b"\n".join(contents)
        traced = found_in(data, words, numbers)
        found += len(traced)
        print(f"{place}: {len(data):,} bytes, {len(traced)} traces")
        for trace in traced[:5]:
            at = data.find(trace)
            print(f"    {trace!r} in {data[max(0, at - 80) : at + 60]!r}")
    count = len(vault.values) * len(TYPES)
    print(
        f"seed {seed}: {count:,} values in {len(TYPES)} types, {len(words) + len(numbers):,} traces, of which the "
        f"unprotected topics hold {seen:,}; found: {found}"
    )
    return not found and seen >= count


def main() -> int:
    """0 if no trace of a value was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.secrets")
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    options = parser.parse_args()
    with scratch_folder() as folder:
        return 0 if run(options.rows, options.seed, folder) else 1


if __name__ == "__main__":
    sys.exit(main())

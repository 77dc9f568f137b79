"""Real servers for tests: shared ones that start when first asked for, and private ones for tests that break them.

A test that takes `postgres` (or `database`) runs once for each major version; `@pytest.mark.postgres(since=15)`,
`(until=14)` or `(only=18)` say which. The versions between the first and the last are marked `versions`, and run by
`make versions`, unless the test names its versions by `only=` or asks for all of them by `every=True`. `also=[14]`
beside `only=` names versions for `make versions`. `CDCD_TEST_PG="16,18"` leaves the other versions out.
"""

import gc
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from deploy.local import POSTGRES_VERSIONS, KafkaBroker, PostgresServer
from tests.integration.daemon import Daemon, until
from tests.integration.faults.trial import Trial
from tests.integration.former import former, pipeline  # noqa: F401  fixtures

VERSIONS = tuple(
    version
    for version in POSTGRES_VERSIONS
    if version in map(int, re.findall(r"\d+", os.environ.get("CDCD_TEST_PG", "")) or POSTGRES_VERSIONS)
)

FIRST_AND_LAST: Final = [
    pytest.param(version, marks=[] if version in VERSIONS[:1] + VERSIONS[-1:] else [pytest.mark.versions])
    for version in VERSIONS
]
"""Parameters for a test that starts its own server: the first and the last version always run, the others are marked
`versions` and run by `make versions`.
"""


@dataclass(frozen=True)
class Database:
    """A fresh, empty database of one test."""

    server: PostgresServer
    name: str

    @property
    def version(self) -> int:
        return self.server.version

    def dsn(self, *, user: str = "postgres", **parameters: str) -> str:
        return self.server.dsn(self.name, user=user, **parameters)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run SQL outside a transaction block, as superuser."""
        return self.server.execute(statement, self.name)

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection:
        return psycopg.connect(self.dsn(), autocommit=autocommit)

    def drop(self) -> None:
        """Remove it with all that would keep it: slots, their walsenders, prepared transactions."""
        for (gid,) in self.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            self.execute(f"ROLLBACK PREPARED '{gid.replace(chr(39), chr(39) * 2)}'")
        with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
            name = (self.name,)
            identifier = sql.Identifier(self.name)

            def is_left() -> bool | None:
                rows = connection.execute("SELECT FROM pg_stat_activity WHERE datname = %s", name)
                return None if rows.fetchall() else True

            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(identifier))
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name
            )
            drop_slots = (
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"
            )
            # Sessions that were ended are on their way out for a while: they hold slots, and take temporary ones along.
            # DROP DATABASE itself waits for five seconds only.
            until(is_left, f"{self.name} still has sessions")
            connection.execute(drop_slots, name)
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "postgres" in metafunc.fixturenames:
        versions, besides = _versions_for(metafunc.definition)
        metafunc.parametrize(
            "postgres",
            [
                pytest.param(
                    version, id=f"pg{version}", marks=[pytest.mark.versions] if version in besides else []
                )
                for version in versions
            ],
            indirect=True,
        )


def _versions_for(item: pytest.Item) -> tuple[list[int], set[int]]:
    """The versions that the test runs for, and which of them `make versions` runs."""
    versions = set(VERSIONS)
    besides: set[int] = set()
    is_chosen = False
    for mark in item.iter_markers("postgres"):
        assert set(mark.kwargs) <= {"since", "until", "only", "also", "every"}, (
            "postgres(since=, until=, only=, also=, every=)"
        )
        since, until, only = (mark.kwargs.get(word) for word in ("since", "until", "only"))
        versions &= set(range(since or 0, (until or 99) + 1))
        if only is not None:
            besides = set(mark.kwargs.get("also", ()))
            versions &= {*([only] if isinstance(only, int) else only), *besides}
        is_chosen = is_chosen or only is not None or mark.kwargs.get("every", False)
    ordered = sorted(versions)
    return ordered, besides if is_chosen else set(ordered[1:-1])


@pytest.fixture(scope="session", autouse=True)
def collected_in_the_main_thread() -> Iterator[None]:
    """No cycles are collected in threads of librdkafka, which call into Python: a client that such a collection frees
    in its own thread aborts the process. The daemon does likewise (`daemon/process.py`).
    """
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def collected_after_the_test(collected_in_the_main_thread: None) -> Iterator[None]:
    yield
    gc.collect(0)


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder that also the unprivileged user of a server may walk through, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="cdcd-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def servers(scratch: Path) -> Iterator[Callable[[int], PostgresServer]]:
    """The shared server of a major version, started when first asked for. Leave it as you found it."""
    started: dict[int, PostgresServer] = {}

    def server(version: int) -> PostgresServer:
        if version not in started:
            started[version] = PostgresServer(version, scratch / f"postgres-{version}")
        if not started[version].is_running():
            started[version].start()
        return started[version]

    yield server
    for each in started.values():
        each.destroy()


@pytest.fixture
def postgres(request: pytest.FixtureRequest, servers: Callable[[int], PostgresServer]) -> PostgresServer:
    """The shared server of each major version in turn."""
    return servers(request.param)


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name of this test alone, for topics, slots, roles: [a-z0-9_], at most 48 long, telling whose it is."""
    said = re.sub(r"[^a-z0-9]+", "_", request.node.name.lower()).strip("_").removeprefix("test_")
    return f"{said[:39].rstrip('_')}_{uuid4().hex[:8]}"


@pytest.fixture
def database(postgres: PostgresServer, unique: str) -> Iterator[Database]:
    """An empty database in `postgres`; gone after the test, with its slots and prepared transactions."""
    found = Database(postgres, unique)
    # Copied files cost a fifth of the processor time of logged pages, and nothing that every slot must read past.
    strategy = "STRATEGY file_copy" if postgres.version >= 15 else ""
    postgres.execute(f'CREATE DATABASE "{unique}" {strategy}')
    yield found
    if not postgres.is_running():
        postgres.start()
    found.drop()


@pytest.fixture
def stranger(database: Database, unique: str) -> Iterator[str]:
    """A role that may connect, and nothing else."""
    role = f"{unique[:50]}_stranger"
    database.execute(f"CREATE ROLE {role} LOGIN")
    yield role
    database.execute(f"DROP OWNED BY {role}")
    database.execute(f"DROP ROLE {role}")


@pytest.fixture
def published(database: Database) -> Database:
    """A database with a table `t (id, note)` and a publication `p` for all tables."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    return database


@pytest.fixture(scope="session")
def _shared_broker(scratch: Path) -> Iterator[KafkaBroker]:
    server = KafkaBroker(scratch / "kafka")
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def broker(_shared_broker: KafkaBroker) -> KafkaBroker:
    """The shared broker; auto-creation of topics is off. Name topics by `unique`, and do not stop it."""
    if not _shared_broker.is_running():
        _shared_broker.start()
    return _shared_broker


@pytest.fixture
def private_postgres(scratch: Path) -> Iterator[Callable[..., PostgresServer]]:
    """`private_postgres(18, settings={…}, …)`: a started server of this test alone, to stop, kill or misconfigure."""
    with ExitStack() as stack:

        def start(version: int = VERSIONS[-1], **options: Any) -> PostgresServer:
            server = PostgresServer(version, scratch / f"postgres-{version}-{uuid4().hex[:8]}", **options)
            stack.callback(server.destroy)
            server.start()
            return server

        yield start


LAST_WORDS: Final = 6000
"""Characters of a broker's log that a failed test shows."""


@pytest.fixture
def private_broker(scratch: Path) -> Iterator[Callable[..., KafkaBroker]]:
    """`private_broker(settings={…}, users={…}, …)`: a started broker of this test alone."""
    with ExitStack() as stack:

        def start(**options: Any) -> KafkaBroker:
            server = KafkaBroker(scratch / f"kafka-{uuid4().hex[:8]}", **options)
            stack.callback(server.destroy)
            stack.callback(lambda: print(server.log()[-LAST_WORDS:]))  # shown where the test fails
            server.start()
            return server

        yield start


@pytest.fixture
def daemon(scratch: Path) -> Iterator[Callable[[Mapping[str, Any]], Daemon]]:
    """`daemon(configuration(…))`: a started daemon that is killed after the test, if it still runs."""
    with ExitStack() as stack:

        def start(config: Mapping[str, Any]) -> Daemon:
            process = stack.enter_context(Daemon(scratch / f"daemon-{uuid4().hex[:8]}", config))
            stack.callback(lambda: print(process.last_words()))  # shown where the test fails
            process.start()
            return process

        yield start


@pytest.fixture
def trial(tmp_path: Path, unique: str) -> Iterator[Callable[..., Trial]]:
    """`trial(database.dsn(), broker.bootstrap_servers, postgres={…})`: a pipeline to be broken, with its table."""
    with ExitStack() as stack:

        def make(dsn: str, servers: str, *, name: str = unique, **options: Any) -> Trial:
            made = Trial(tmp_path / f"trial-{uuid4().hex[:8]}", name, dsn, servers, **options)
            stack.callback(made.close)
            made.create_table()
            return made

        yield make

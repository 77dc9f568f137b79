"""Amounts of the type money under the locales of many currencies: what a reader sees is what `::numeric` gives.

A value is a whole number of minor units, and only lc_monetary says how many of its digits are a fraction. Whoever
counts on cents where there are none pays, or is paid, a hundred times the amount.
"""

import asyncio
import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from cdcd.config.loading import load_config
from cdcd.tools.verify.report import DIFFERENT, EQUAL
from cdcd.tools.verify.topics import ComparisonOptions, TopicsTarget
from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.conftest import VERSIONS
from tests.integration.daemon import Daemon, configuration
from tests.integration.visible_records import await_decided
from tests.locales import NAMES, locale_folder

attack = pytest.mark.attack(gains="an amount that is a hundred times what was paid", before="failed")
withstood = pytest.mark.attack(gains="an amount that is a hundred times what was paid", before="withstood")

UNITS: Final = (
    "0",
    "0.01",
    "-0.01",
    "12345.68",
    "-12345.68",
    "92233720368547758.07",
    "-92233720368547758.08",
)
"""Amounts as a session in lc_monetary C writes them: the last two are the ends of 8 bytes."""

SCHEMA: Final = """
CREATE DOMAIN price AS money;
CREATE TYPE item AS (name text, cost money, former money[]);
CREATE TYPE span AS RANGE (subtype = money);
CREATE TABLE t (id int PRIMARY KEY, m money, d price, a money[], c item, r span, items item[]);
CREATE TABLE older (id int PRIMARY KEY);
INSERT INTO older VALUES (1);
"""

AMOUNT: Final = re.compile(r"-?\$[\d,]+(?:\.\d+)?")

WITH_CENTS: Final = {"de_DE", "de_CH", "en_US", "en_GB", "en_IN", "fr_FR", "hu_HU", "nl_NL", "sv_SE", "es_CL"}


@pytest.fixture(scope="module")
def localised(scratch: Path) -> Iterator[Callable[..., PostgresServer]]:
    """`localised(18, "ja_JP")`: a server that has these locales."""
    started: dict[int, PostgresServer] = {}

    def server(version: int, *locales: str) -> PostgresServer:
        folder = locale_folder(*locales)
        if version not in started:
            environment = {"LOCPATH": str(folder)}
            started[version] = PostgresServer(
                version, scratch / f"postgres-{version}-money", environment=environment
            )
            started[version].start()
        return started[version]

    yield server
    for each in started.values():
        each.destroy()


class Shop:
    """A database whose default of lc_monetary is that of a country."""

    def __init__(self, server: PostgresServer, name: str, locale: str) -> None:
        self.server, self.name = server, name
        server.execute(f'CREATE DATABASE "{name}"')
        server.execute(f"ALTER DATABASE \"{name}\" SET lc_monetary = '{locale}.UTF-8'")
        with psycopg.connect(self.dsn(), autocommit=True) as sql:
            sql.execute(SCHEMA.encode())

    def dsn(self, **parameters: str) -> str:
        return self.server.dsn(self.name, **parameters)

    def write(self, first: int) -> None:
        """Write every amount, from an id on, in minor units: a session in C has cents always."""
        with psycopg.connect(self.dsn(options="-c lc_monetary=C"), autocommit=True) as sql:
            for at, units in enumerate(UNITS):
                amount = f"'{units}'::money"
                values = [
                    f"{first + at}",
                    amount,
                    amount,
                    f"ARRAY[{amount}, NULL, {amount}]",
                    rf"""ROW('a,"b\', {amount}, ARRAY[{amount}, NULL])::item""",
                    f"span('{UNITS[-1]}', {amount}, '[]')",
                    f"ARRAY[ROW(NULL, {amount}, NULL)::item]",
                ]
                sql.execute(f"INSERT INTO t VALUES ({', '.join(values)})".encode())

    def expected(self) -> dict[int, str]:
        """`::numeric` of each amount in a session that takes the database's default."""
        with psycopg.connect(self.dsn(), autocommit=True) as sql:
            return dict(sql.execute("SELECT id, m::numeric::text FROM t").fetchall())


def amounts(text: str) -> list[str]:
    return [each.replace("$", "").replace(",", "") for each in AMOUNT.findall(text)]


def by_id(servers: str, name: str, table: str = "t") -> dict[int, tuple[str, dict[str, Any]]]:
    with Reader(servers, name) as reader:
        records = [each for each in reader.read_all() if each.topic == f"{name}.public.{table}"]
    found = [json.loads(each.value) for each in records if each.value is not None]
    found = [each.get("payload", each) for each in found]
    return {each["after"]["id"]: (each["op"], each["after"]) for each in found}


def verdict(file: Path, folder: Path) -> str:
    with closing(
        TopicsTarget(load_config(file, {}), ComparisonOptions(timeout_s=120), folder, print)
    ) as target:
        return asyncio.run(target.verify()).verdict


CASES: Final = [
    pytest.param(
        version,
        locale,
        id=f"{locale}-pg{version}",
        marks=[
            withstood if locale in WITH_CENTS else attack,
            *([pytest.mark.worst] if (version, locale) == (18, "ja_JP") else []),
        ],
    )
    for version in dict.fromkeys((VERSIONS[0], VERSIONS[-1]))
    for locale in NAMES
]


@pytest.mark.parametrize(("version", "locale"), CASES)
def test_every_amount_is_what_numeric_gives_in_snapshot_and_stream(
    version: int,
    locale: str,
    localised: Callable[..., PostgresServer],
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
    tmp_path: Path,
):
    # GIVEN amounts in a database of that country, some of them before the pipeline
    shop, servers = Shop(localised(version, locale), unique, locale), broker.bootstrap_servers
    shop.write(100)
    running = daemon(
        configuration(
            unique,
            shop.dsn(),
            servers,
            snapshot={"mode": "initial"},
            topics={"schemas": f"{unique}.forms"},
        )
    )
    running.await_streaming()
    # WHEN the others are written, and a column with a default comes to a table that has rows
    with psycopg.connect(shop.dsn(options="-c lc_monetary=C"), autocommit=True) as sql:
        sql.execute("ALTER TABLE older ADD price money DEFAULT '12345.68'")
        sql.execute("INSERT INTO older VALUES (2)")
    shop.write(200)
    await_flushed(shop.dsn(), f"cdcd_{unique}")
    # THEN the topics are equal to the table, for `cdcd verify` and for PostgreSQL's own conversion
    assert verdict(running.config_path, tmp_path) == EQUAL
    assert running.stop() == 0
    await_decided(servers, f"{unique}.public.t")
    expected, found = shop.expected(), by_id(servers, unique)
    assert found.keys() == expected.keys() == {*range(100, 107), *range(200, 207)}
    for row, numeric in expected.items():
        op, after = found[row]
        assert op == ("r" if row < 200 else "c")
        assert (after["m"], after["d"], after["a"]) == (numeric, numeric, [numeric, None, numeric])
        assert amounts(after["c"]) == [numeric, numeric]
        assert "a," in after["c"]
        assert amounts(after["items"][0]) == [numeric]
        assert after["r"] == "empty" or amounts(after["r"])[-1] == numeric
    one = expected[103]
    assert by_id(servers, unique, "older")[2][1]["price"] == one
    with Reader(servers, unique) as reader:
        forms = [
            json.loads(each.value or b"{}") for each in reader.read_all() if each.topic == f"{unique}.forms"
        ]
    columns = [column for form in forms for column in form.get("columns", ()) if column["name"] == "price"]
    digits = len(one.partition(".")[2])
    assert {(column["form"], column["default"]) for column in columns} == {(f"decimal(19,{digits})", one)}


FORMS: Final = [
    ("json", "precise", False),
    ("json", "double", False),
    ("json_schema", "precise", False),
    ("json", "string", True),
    ("json", "precise", True),
    ("json", "double", True),
]


@pytest.mark.parametrize("locale", [pytest.param("ja_JP", marks=attack), pytest.param("ar_KW", marks=attack)])
@pytest.mark.parametrize(("form", "mode", "binary"), FORMS)
def test_every_amount_is_what_numeric_gives_in_every_mode(
    form: str,
    mode: str,
    binary: bool,
    locale: str,
    *,
    localised: Callable[..., PostgresServer],
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
):
    shop, servers = Shop(localised(VERSIONS[-1], locale), unique, locale), broker.bootstrap_servers
    shop.write(100)
    running = daemon(
        configuration(
            unique,
            shop.dsn(),
            servers,
            snapshot={"mode": "initial"},
            postgres={"binary": binary},
            format={"decimal_handling_mode": mode, "value": form},
        )
    )
    running.await_streaming()
    shop.write(200)
    await_flushed(shop.dsn(), f"cdcd_{unique}")
    assert running.stop() == 0
    await_decided(servers, f"{unique}.public.t")
    digits = 0 if locale == "ja_JP" else 3
    read: dict[str, Callable[[Any], Any]] = {
        "string": str,
        "double": float,
        "precise": lambda each: Decimal(int.from_bytes(b64decode(each), "big", signed=True)).scaleb(-digits),
    }
    found, expected = by_id(servers, unique), shop.expected()
    assert found.keys() == expected.keys()
    for row, numeric in expected.items():
        after = found[row][1]
        want = {"string": numeric, "double": float(numeric), "precise": Decimal(numeric)}[mode]
        assert [read[mode](after[name]) for name in ("m", "d")] == [want, want]
        assert [None if each is None else read[mode](each) for each in after["a"]] == [want, None, want]
        assert amounts(after["c"]) == [numeric, numeric]
    if form == "json_schema":
        with Reader(servers, unique) as reader:
            record = next(each for each in reader.read_all() if each.topic == f"{unique}.public.t")
        text = json.dumps(json.loads(record.value or b"{}")["schema"])
        assert f'"scale": "{digits}"' in text


@attack
def test_topics_of_an_older_cdcd_are_different_and_a_changed_default_is_told(
    localised: Callable[..., PostgresServer],
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
    tmp_path: Path,
):
    # GIVEN topics with cents, as cdcd wrote them under every locale
    shop, servers = Shop(localised(VERSIONS[-1], "ja_JP", "ar_KW"), unique, "ja_JP"), broker.bootstrap_servers
    shop.write(100)
    sections: dict[str, Any] = {"snapshot": {"mode": "initial"}}
    running = daemon(configuration(unique, shop.dsn(), servers, money={"digits": 2}, **sections))
    running.await_streaming()
    running.await_event("snapshot.finished")
    assert running.stop() == 0
    # WHEN cdcd goes on with the digits of the database
    running = daemon(configuration(unique, shop.dsn(), servers, **sections))
    running.await_streaming()
    # THEN it says that the former amounts differ, and verify finds them
    told = running.await_event("settings.changed")
    assert (told["setting"], told["level"]) == ("money.digits", "warning")
    assert verdict(running.config_path, tmp_path) == DIFFERENT


@attack
@pytest.mark.parametrize("where", ["role", "role in the database", "dsn"])
def test_a_setting_of_the_role_does_not_move_the_point(
    where: str,
    localised: Callable[..., PostgresServer],
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
):
    shop, servers = Shop(localised(VERSIONS[-1], "ja_JP", "ar_KW"), unique, "ja_JP"), broker.bootstrap_servers
    shop.server.execute(f'CREATE ROLE "{unique}" SUPERUSER LOGIN REPLICATION')
    more = {}
    if where == "dsn":
        more = {"options": "-c lc_monetary=ar_KW.UTF-8"}
    else:
        place = f'IN DATABASE "{unique}" ' if "database" in where else ""
        shop.server.execute(f"ALTER ROLE \"{unique}\" {place}SET lc_monetary = 'ar_KW.UTF-8'")
    shop.write(100)
    running = daemon(
        configuration(unique, shop.dsn(user=unique, **more), servers, snapshot={"mode": "initial"})
    )
    running.await_event("snapshot.finished")
    assert running.stop() == 0
    expected = shop.expected()
    assert {row: after["m"] for row, (_, after) in by_id(servers, unique).items()} == expected


@attack
def test_the_servers_default_counts_where_the_role_hides_it_and_is_refused_where_it_cannot_be_seen(
    scratch: Path, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str
):
    # GIVEN a server in Japan, whose databases say nothing, and a role that has its own
    hba = ["host all all 127.0.0.1/32 trust", "host replication postgres 127.0.0.1/32 trust"]
    server = PostgresServer(
        VERSIONS[-1],
        scratch / f"postgres-{unique}",
        settings={"lc_monetary": "ja_JP.UTF-8"},
        hba=hba,
        environment={"LOCPATH": str(locale_folder("ja_JP"))},
    )
    server.start()
    try:
        server.execute(f'CREATE DATABASE "{unique}"')
        server.execute("CREATE TABLE t (id int PRIMARY KEY, m money)", unique)
        server.execute("INSERT INTO t VALUES (1, '1234568')", unique)
        server.execute("CREATE ROLE shop SUPERUSER LOGIN REPLICATION")
        server.execute("ALTER ROLE shop SET lc_monetary = 'C'")
        server.execute("ALTER ROLE postgres SET lc_monetary = 'C'")
        # WHEN pg_hba.conf lets it see the server's default, that counts; THEN the amount is right
        seen = daemon(
            configuration(
                unique,
                server.dsn(unique),
                broker.bootstrap_servers,
                snapshot={"mode": "initial"},
            )
        )
        seen.await_event("snapshot.finished")
        assert seen.stop() == 0
        await_decided(broker.bootstrap_servers, f"{unique}.public.t")
        assert by_id(broker.bootstrap_servers, unique)[1][1]["m"] == "1234568"
        # WHEN it does not, THEN nothing is guessed
        unseen = daemon(
            configuration(f"{unique}_b", server.dsn(unique, user="shop"), broker.bootstrap_servers)
        )
        assert unseen.wait() == 2
        assert "ALTER ROLE" in unseen.last_words()
        assert "money.digits" in unseen.last_words()
    finally:
        server.destroy()


@pytest.mark.attack(gains="the end of the pipeline by a locale", before="withstood")
def test_a_currency_whose_symbol_the_database_cannot_hold_ends_nothing(
    localised: Callable[..., PostgresServer],
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
):
    # GIVEN a database in LATIN1, which has no euro, where no session with the default can use money
    server, servers = localised(VERSIONS[-1], "de_DE"), broker.bootstrap_servers
    server.execute(
        f"CREATE DATABASE \"{unique}\" TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    server.execute(f"ALTER DATABASE \"{unique}\" SET lc_monetary = 'de_DE.UTF-8'")
    dsn = server.dsn(unique, client_encoding="UTF8")
    with psycopg.connect(server.dsn(unique, options="-c lc_monetary=C"), autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, m money)")
        sql.execute("INSERT INTO t VALUES (1, '12345.68')")
        running = daemon(configuration(unique, dsn, servers, snapshot={"mode": "initial"}))
        running.await_event("snapshot.finished")
        sql.execute("INSERT INTO t VALUES (2, '12345.68')")
    await_flushed(dsn, f"cdcd_{unique}")
    assert running.stop() == 0
    await_decided(servers, f"{unique}.public.t")
    # THEN amounts are those of C, in which they were written
    assert {row: after["m"] for row, (_, after) in by_id(servers, unique).items()} == dict.fromkeys(
        (1, 2), "12345.68"
    )

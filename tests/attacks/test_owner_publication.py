"""Owners of schemas and tables against what alters the publication for cdcd (`postgres.publication_changes`).

`cdcd.change_publication` of deploy/sql/follow.sql runs with the rights of a DBA, and its arguments are what strangers
have named. The pipeline's role itself must not get further than the patterns that the DBA gave.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from cdcd.adapters.postgres.connection import connect, parse_dsn
from cdcd.adapters.postgres.following import check_function
from deploy.local import KafkaBroker
from deploy.local.cache import REPOSITORY
from tests.attacks.measured import records
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.test_deploy_sql import psql

pytestmark = pytest.mark.postgres(only=[13, 18])

CALL = "SELECT cdcd.change_publication(%s, %s::oid[], %s::oid[])"

BEFORE = "withstood"
"""Commit 99c61843 altered no publication."""


@dataclass
class Followed:
    """A publication that a DBA lets a pipeline's role alter: tables of `app` and `in_oice` but for `app.secret*`."""

    database: Database
    pipeline: str
    owner: str

    def install(self, **variables: str) -> str:
        given = {"include": "app.*, b.in_oice?", "exclude": 'app.secret*, app."star*"', **variables}
        script = (REPOSITORY / "deploy/sql/follow.sql").read_text()
        return psql(self.database, script, publication="p", role=self.pipeline, **given)

    def run(self, statement: str) -> None:
        """As the owner of the schema."""
        self.database.execute(f'SET ROLE "{self.owner}"; {statement}')

    def oid(self, table: str) -> int:
        return int(self.database.execute(f"SELECT '{table}'::regclass::oid")[0][0])

    def call(
        self, added: list[int], dropped: list[int] | None = None, *, user: str = "", publication: str = "p"
    ) -> None:
        """As the pipeline's role, or another one."""
        with psycopg.connect(self.database.dsn(user=user or self.pipeline), autocommit=True) as session:
            session.execute(CALL, (publication, added, dropped or []))

    def published(self) -> set[str]:
        found = self.database.execute(
            "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = 'p'"
        )
        return {name for (name,) in found}

    def trust(self, *owners: str) -> str:
        """Why cdcd would not call the function."""

        async def ask() -> str:
            session = await connect(parse_dsn(self.database.dsn(user=self.pipeline)), application_name="test")
            try:
                return await check_function(session, owners)
            finally:
                await session.close()

        return asyncio.run(ask())


@pytest.fixture
def followed(database: Database, unique: str) -> Iterator[Followed]:
    found = Followed(database, f"{unique[:50]}_p", f"{unique[:50]}_o")
    for role in (found.pipeline, found.owner):
        database.execute(f'CREATE ROLE "{role}" LOGIN')
    database.execute(f'GRANT CREATE ON DATABASE "{database.name}" TO "{found.owner}"')
    database.execute("CREATE PUBLICATION p; CREATE PUBLICATION other; CREATE SCHEMA b")
    found.run("CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY)")
    found.install()
    yield found
    for role in (found.pipeline, found.owner):
        database.execute(f'DROP OWNED BY "{role}" CASCADE; DROP ROLE "{role}"')


@pytest.mark.attack(gains="nothing: what the DBA allows works", before=BEFORE)
def test_what_the_dba_allows_is_published_and_dropped(followed: Followed):
    """Not an attack: the measure of the others."""
    followed.database.execute("CREATE TABLE b.in_oice1 (id int PRIMARY KEY)")
    oids = [followed.oid("app.t"), followed.oid("b.in_oice1")]
    followed.call(oids)
    assert followed.published() == {"app.t", "b.in_oice1"}
    followed.call([], oids[:1])
    assert followed.published() == {"b.in_oice1"}
    assert followed.trust() == ""


@pytest.mark.attack(gains="a publication altered by a role that may only own tables", before=BEFORE)
@pytest.mark.worst
def test_the_owner_of_tables_cannot_call_it(followed: Followed):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        followed.call([followed.oid("app.t")], user=followed.owner)
    assert followed.published() == set()


@pytest.mark.parametrize(
    "name",
    [
        'x"; DROP TABLE app.t; --',
        'x", public.secret',
        "x WHERE (app.evil())",
        "%I",
        "x'); SELECT 1; --",
        "ONLY",
    ],
)
@pytest.mark.attack(gains="SQL with the rights of a DBA, by the name of a table", before=BEFORE)
@pytest.mark.worst
def test_a_name_is_only_a_name(followed: Followed, name: str):
    quoted = '"{}"'.format(name.replace('"', '""'))
    followed.database.execute("CREATE TABLE public.secret (id int PRIMARY KEY)")
    followed.run(f"CREATE TABLE app.{quoted} (id int PRIMARY KEY)")
    oid = followed.database.execute(
        f"SELECT oid FROM pg_class WHERE relname = '{name.replace(chr(39), chr(39) * 2)}' AND relkind = 'r'"
    )[0][0]
    followed.call([oid])
    assert followed.published() == {f"app.{name}"}


@pytest.mark.attack(gains="code of a stranger's with the rights of a DBA, by search_path", before=BEFORE)
@pytest.mark.worst
def test_functions_and_operators_of_others_are_not_found(followed: Followed):
    """The pipeline's sessions even have the stranger's schema in front of pg_catalog."""
    since = len(followed.database.server.log())
    shout = "LANGUAGE plpgsql AS $$ BEGIN RAISE LOG 'LOOT as %', current_user; RETURN {}; END $$"
    followed.run(
        f"""CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC;
        CREATE FUNCTION evil.format(text, VARIADIC text[]) RETURNS text {shout.format("''")};
        CREATE FUNCTION evil.format(text, name) RETURNS text {shout.format("''")};
        CREATE FUNCTION evil.format(text, name, name) RETURNS text {shout.format("''")};
        CREATE FUNCTION evil.cardinality(oid[]) RETURNS int {shout.format("0")};
        CREATE FUNCTION evil.eq(name, name) RETURNS bool {shout.format("true")};
        CREATE FUNCTION evil.likes(text, text) RETURNS bool {shout.format("true")};
        CREATE OPERATOR evil.= (LEFTARG = name, RIGHTARG = name, FUNCTION = evil.eq);
        CREATE OPERATOR evil.~~ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.likes);
        CREATE TABLE evil.pg_class (oid oid, relname name); CREATE TABLE evil.t (id int PRIMARY KEY)"""
    )
    followed.database.execute(f'ALTER ROLE "{followed.pipeline}" SET search_path = evil, pg_catalog, public')
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        followed.call([followed.oid("evil.t")])
    followed.call([followed.oid("app.t")])
    assert followed.published() == {"app.t"}
    assert "LOOT" not in followed.database.server.log()[since:]


@pytest.mark.attack(gains="code of a table's owner with the rights of a DBA", before=BEFORE)
@pytest.mark.worst
def test_publishing_a_table_runs_nothing_of_its_owner(followed: Followed):
    since = len(followed.database.server.log())
    followed.run(
        """CREATE FUNCTION app.evil(int) RETURNS int IMMUTABLE LANGUAGE plpgsql
           AS $$ BEGIN
               IF current_user NOT LIKE '%\\_o' THEN RAISE LOG 'LOOT as %', current_user; END IF; RETURN $1;
           END $$;
        CREATE DOMAIN app.checked AS int CHECK (app.evil(VALUE) > 0);
        CREATE TABLE app.trap (id int PRIMARY KEY, d app.checked DEFAULT app.evil(1), CHECK (app.evil(id) > 0),
                               g int GENERATED ALWAYS AS (app.evil(id)) STORED);
        CREATE INDEX ON app.trap ((id + app.evil(1)));
        ALTER TABLE app.trap ENABLE ROW LEVEL SECURITY; ALTER TABLE app.trap FORCE ROW LEVEL SECURITY;
        CREATE POLICY q ON app.trap USING (app.evil(id) > 0);
        CREATE RULE r AS ON UPDATE TO app.trap DO ALSO SELECT app.evil(1);
        INSERT INTO app.trap (id) VALUES (1)"""
    )
    followed.call([followed.oid("app.trap")])
    followed.call([], [followed.oid("app.trap")])
    assert "LOOT" not in followed.database.server.log()[since:]


@pytest.mark.parametrize(
    ("create", "table"),
    [
        ("CREATE TABLE app.secret_pay (id int PRIMARY KEY)", "app.secret_pay"),
        ('CREATE TABLE app."star*" (id int PRIMARY KEY)', 'app."star*"'),
        ('CREATE SCHEMA "app.x"; CREATE TABLE "app.x".t (id int PRIMARY KEY)', '"app.x".t'),
        ("CREATE SCHEMA appx; CREATE TABLE appx.t (id int PRIMARY KEY)", "appx.t"),
        ('CREATE SCHEMA "APP"; CREATE TABLE "APP".t (id int PRIMARY KEY)', '"APP".t'),
        ("CREATE TABLE b.inXoice1 (id int PRIMARY KEY)", "b.inXoice1"),
        ("CREATE TABLE b.in_oice12 (id int PRIMARY KEY)", "b.in_oice12"),
        ("CREATE TABLE app.keyless (id int)", "app.keyless"),
        ("CREATE UNLOGGED TABLE app.unlogged (id int PRIMARY KEY)", "app.unlogged"),
        ("CREATE VIEW app.view AS SELECT 1 AS id", "app.view"),
        ("CREATE TABLE public.secret (id int PRIMARY KEY)", "public.secret"),
        ("", "pg_catalog.pg_authid"),
    ],
)
@pytest.mark.attack(gains="a table in the publication that the DBA did not allow", before=BEFORE)
@pytest.mark.worst
def test_the_pipelines_role_gets_no_further_than_the_patterns(followed: Followed, create: str, table: str):
    if create:
        followed.database.execute(create)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        followed.call([followed.oid("app.t"), followed.oid(table)])
    assert followed.published() == set()


@pytest.mark.attack(gains="another pipeline's publication", before=BEFORE)
def test_the_pipelines_role_cannot_alter_another_publication(followed: Followed):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        followed.call([followed.oid("app.t")], publication="other")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        followed.call([followed.oid("app.t")], publication='p" ADD TABLE public.secret; --')


@pytest.mark.attack(gains="wider patterns", before=BEFORE)
def test_the_pipelines_role_cannot_change_the_patterns(followed: Followed):
    with (
        psycopg.connect(followed.database.dsn(user=followed.pipeline), autocommit=True) as session,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        session.execute(
            "INSERT INTO cdcd.published_patterns SELECT publication, role, false, '%', '%' FROM cdcd.published_patterns"
        )


@pytest.mark.attack(gains="tables of other owners, by inheritance", before=BEFORE)
def test_tables_that_inherit_from_a_published_one_are_not_published_with_it(followed: Followed):
    followed.run("CREATE SCHEMA mine; CREATE TABLE mine.child () INHERITS (app.t)")
    followed.call([followed.oid("app.t")])
    assert followed.published() == {"app.t"}


@pytest.mark.attack(gains="the locks of the server, by an endless list", before=BEFORE)
def test_a_call_takes_a_bounded_number_of_tables(followed: Followed):
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        followed.call(list(range(1, 1002)))


@pytest.mark.attack(
    gains="code of a stranger's as cdcd's role, by a function of the expected name", before=BEFORE
)
@pytest.mark.worst
def test_cdcd_does_not_call_a_function_that_a_stranger_could_have_made(followed: Followed):
    drop = "DROP SCHEMA cdcd CASCADE"
    own = (
        "CREATE FUNCTION cdcd.change_publication(publication name, added oid[], dropped oid[]) RETURNS void "
        "LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS ''; "
        "GRANT USAGE ON SCHEMA cdcd TO PUBLIC"
    )
    # A stranger who may create schemas was there before the DBA.
    followed.database.execute(drop)
    followed.run(f"CREATE SCHEMA cdcd; {own}")
    assert f"belongs to role {followed.owner}" in followed.trust()
    assert "belongs to role" in followed.trust("somebody_else")
    assert followed.trust(followed.owner) == ""

    # The function is a superuser's, and its schema is the stranger's, who can drop it and create another one.
    followed.database.execute("ALTER FUNCTION cdcd.change_publication(name, oid[], oid[]) OWNER TO postgres")
    assert f"schema of cdcd.change_publication belongs to role {followed.owner}" in followed.trust()

    # THEN the script of the DBA does not build on it.
    with pytest.raises(AssertionError, match="belongs to another role"):
        followed.install()


@pytest.mark.parametrize("spoil", ["SECURITY INVOKER", "RESET ALL", "SET search_path = public"])
@pytest.mark.attack(gains="a function without its fences", before=BEFORE)
def test_cdcd_calls_the_function_only_as_follow_sql_makes_it(followed: Followed, spoil: str):
    followed.database.execute(f"ALTER FUNCTION cdcd.change_publication(name, oid[], oid[]) {spoil}")
    assert "SECURITY DEFINER" in followed.trust()


@pytest.mark.parametrize("patterns", ["app", "app.*; b.*", 'app."x', "app.*,, b.*", "a.b.c", "app.* b.*"])
@pytest.mark.attack(gains="other tables than the DBA meant, by a pattern that is read in part", before=BEFORE)
def test_a_malformed_pattern_is_refused_as_a_whole(followed: Followed, patterns: str):
    with pytest.raises(AssertionError, match="not a list of patterns"):
        followed.install(include=patterns)
    followed.call([followed.oid("app.t")])


@pytest.mark.attack(
    gains="columns and rows that the DBA does not publish, in clear in a topic", before="withstood"
)
@pytest.mark.postgres(only=18)
def test_a_table_that_an_owner_takes_out_of_the_publication_does_not_come_back_without_its_column_list(
    database: Database, broker: KafkaBroker, daemon: Callable[[dict[str, Any]], Daemon], unique: str
):
    # GIVEN a publication that follows the patterns, and has a table with a column list and one with a row filter
    database.execute("CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, note text, ssn text)")
    database.execute("CREATE TABLE app.u (id int PRIMARY KEY, shown bool, ssn text)")
    database.execute("ALTER TABLE app.u REPLICA IDENTITY FULL; CREATE TABLE app.other (id int PRIMARY KEY)")
    database.execute(
        f"CREATE PUBLICATION cdcd_{unique} FOR TABLE app.t (id, note), app.u (id, shown) WHERE (shown), app.other "
        "WITH (publish = 'insert')"
    )
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            postgres={"publication_changes": "owner", "tables": ["app.*"]},
        )
    )
    process.await_streaming()
    database.execute("CREATE TABLE app.new (id int PRIMARY KEY)")
    process.await_event("publication.changed", added=["app.new"])
    # WHEN the owner drops a column of the list and of the filter, which takes the tables out of the publication
    database.execute("ALTER TABLE app.t DROP COLUMN note CASCADE")
    database.execute("ALTER TABLE app.u DROP COLUMN shown CASCADE")
    # THEN the tables stay outside, and the event says why, without a statement that would publish all columns
    told = process.await_event("publication.differs", lacking_count=2)
    assert told["lacking"] == ["app.t", "app.u"]
    assert "column list or a row filter" in told["reason"]
    assert told["command"] == ""
    database.execute("INSERT INTO app.t VALUES (1, 's3cr3t'); INSERT INTO app.u VALUES (1, 's3cr3t')")
    database.execute("INSERT INTO app.other VALUES (1)")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "app.other")
    found = records(broker, f"{unique}.app.t") + records(broker, f"{unique}.app.u")
    assert not any(b"s3cr3t" in (each.value() or b"") for each in found)
    assert process.stop() == 0

"""Types of the owner in keys and columns: no CHECK, cast or operator of them runs, and the row is found."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from cdcd.core.catalog.binary_compound import reader_for
from cdcd.core.snapshot.reading import Answer, KeyQuery
from cdcd.core.snapshot.table_task import KeyValue
from tests.attacks.owners import PLENTY, READS, Stage, keys, lines_of, staged, types_of
from tests.integration.conftest import Database

GAINS: Final = "the rows of other owners' tables, and columns that are hashed or left out"

_DOMAIN: Final = "CREATE DOMAIN own.d AS int CHECK (mal.evil_check(VALUE))"
_CAST_FUNCTION: Final = (
    "CREATE FUNCTION own.cast_{to}(own.k) RETURNS {to} LANGUAGE plpgsql IMMUTABLE AS "
    "$$BEGIN PERFORM mal.steal(); RETURN {value}; END$$"
)


def casts(to: str, value: str, context: str) -> tuple[str, str]:
    """A cast of the owner's type that calls the owner's function."""
    return (
        _CAST_FUNCTION.format(to=to, value=value),
        f"CREATE CAST (own.k AS {to}) WITH FUNCTION own.cast_{to}(own.k) {context}",
    )


@dataclass(frozen=True)
class Kind:
    """A type of the owner in a key.

    Attributes:
        statements: make the type.
        type: its name.
        value: a value, as SQL; `text` is the same as PostgreSQL sends it.
        before: whether commit 99c61843 fell to it.
    """

    statements: tuple[str, ...]
    type: str
    value: str
    text: str
    before: str = "failed"


_ENUM: Final = "CREATE TYPE own.k AS ENUM ('it''s', 'so\\so', 'a,b')"
_EQUAL: Final = (
    (
        "CREATE FUNCTION own.equal(own.k, own.k) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS "
        "$$BEGIN PERFORM mal.steal(); RETURN true; END$$"
    ),
    "CREATE OPERATOR own.= (LEFTARG = own.k, RIGHTARG = own.k, FUNCTION = own.equal)",
)

KINDS: Final[dict[str, Kind]] = {
    "composite of a domain": Kind((_DOMAIN, "CREATE TYPE own.k AS (a own.d)"), "own.k", "ROW(7)", "(7)"),
    "composite of composites": Kind(
        (_DOMAIN, "CREATE TYPE own.j AS (a own.d)", "CREATE TYPE own.k AS (a own.j, b text)"),
        "own.k",
        "ROW(ROW(7)::own.j, 'x y')",
        '("(7)","x y")',
    ),
    "domain": Kind((_DOMAIN,), "own.d", "7", "7", "withstood"),
    "domain over a domain": Kind(
        (_DOMAIN, "CREATE DOMAIN own.e AS own.d CHECK (mal.evil_check(VALUE::int))"),
        "own.e",
        "7",
        "7",
        "withstood",
    ),
    "domain over text": Kind(
        ("CREATE DOMAIN own.d AS varchar(9) CHECK (mal.evil_check(VALUE::text))",),
        "own.d",
        "'it''s'",
        "it's",
        "withstood",
    ),
    "domain over an array": Kind(
        ("CREATE DOMAIN own.d AS int[] CHECK (mal.evil_check(VALUE))",),
        "own.d",
        "'{7,8}'",
        "{7,8}",
        "withstood",
    ),
    "domain over a composite": Kind(
        (_DOMAIN, "CREATE TYPE own.j AS (a own.d)", "CREATE DOMAIN own.k AS own.j"),
        "own.k",
        "ROW(7)::own.j",
        "(7)",
    ),
    "array of a domain": Kind((_DOMAIN,), "own.d[]", "'{7,NULL}'", "{7,NULL}"),
    "range over a domain": Kind(
        (_DOMAIN, "CREATE TYPE own.k AS RANGE (subtype = own.d)"), "own.k", "'[1,7)'", "[1,7)"
    ),
    "enum with odd labels": Kind((_ENUM,), "own.k", "'so\\so'", "so\\so", "withstood"),
    "enum with a cast to text": Kind(
        (_ENUM, *casts("text", "'x'", "AS IMPLICIT")), "own.k", "'it''s'", "it's"
    ),
    "enum with a cast to int": Kind((_ENUM, *casts("int4", "1", "AS IMPLICIT")), "own.k", "'a,b'", "a,b"),
    "array of enums": Kind(
        (_ENUM, *casts("text", "'x'", "AS IMPLICIT")), "own.k[]", "'{\"a,b\"}'", '{"a,b"}', "withstood"
    ),
    "enum with an operator": Kind((_ENUM, *_EQUAL), "own.k", "'it''s'", "it's", "withstood"),
    "domain over an enum": Kind(
        (
            _ENUM,
            *casts("text", "'x'", "AS IMPLICIT"),
            "CREATE DOMAIN own.d AS own.k CHECK (mal.evil_check(VALUE))",
        ),
        "own.d",
        "'it''s'",
        "it's",
    ),
    "composite with a cast to text": Kind(
        ("CREATE TYPE own.k AS (a int)", *casts("text", "'x'", "AS IMPLICIT")),
        "own.k",
        "ROW(7)",
        "(7)",
    ),
    "domain with an operator": Kind(("CREATE DOMAIN own.k AS int", *_EQUAL), "own.k", "7", "7", "withstood"),
}


@pytest.fixture
def stage(database: Database, unique: str) -> Iterator[Stage]:
    with staged(database, unique) as stage:
        yield stage


def make(stage: Stage, kind: Kind, columns: str = "id {type} PRIMARY KEY, note text") -> None:
    stage.owner(
        *kind.statements,
        f"CREATE TABLE own.t ({columns.format(type=kind.type)})",
        f"INSERT INTO own.t (id, note) VALUES ({kind.value}, 'right')",
    )
    stage.publish()


async def by_key(stage: Stage, query: KeyQuery, types: bool = False) -> Answer:
    reader = await stage.reader(**({"types": await types_of(stage, query.table)} if types else {}))
    try:
        return await reader.read(query, PLENTY)
    finally:
        reader.close()


def parameters() -> list[object]:
    """Each kind, with what became of it before; the composite is the one that `make test` runs."""
    return [
        pytest.param(
            kind,
            id=name,
            marks=[
                pytest.mark.attack(gains=GAINS, before=kind.before),
                *([pytest.mark.worst] if name == "composite of a domain" else []),
            ],
        )
        for name, kind in KINDS.items()
    ]


@pytest.mark.parametrize("kind", parameters())
def test_a_row_whose_key_is_of_the_owners_type_is_found_and_nothing_of_the_type_runs(
    stage: Stage, kind: Kind
):
    make(stage, kind)

    async def read() -> tuple[Answer, Answer]:
        table = await stage.table()
        other = keys(table, ("(8)" if kind.text.startswith("(") else kind.text,))
        assert stage.loot() == []
        return await by_key(stage, keys(table, (kind.text,))), await by_key(stage, other)

    found, _ = asyncio.run(read())
    (line,) = lines_of(found)
    assert line.endswith(b"\tright")
    assert stage.loot() == []


@pytest.mark.attack(gains=GAINS, before="failed")
@pytest.mark.parametrize(
    "name", ["domain", "domain over a domain", "composite of a domain", "array of a domain"]
)
def test_a_key_that_came_in_binary_form_is_not_given_to_the_owners_type(stage: Stage, name: str):
    kind = KINDS[name]
    make(stage, kind)
    sends = {"d": "int4send", "e": "int4send", "k": "record_send", "d[]": "array_send"}[kind.type[4:]]
    ((data,),) = stage.database.execute(f"SELECT {sends}(id) FROM own.t")

    async def read() -> Answer:
        table = await stage.table()
        value: KeyValue = (True, bytes(data))
        assert reader_for(table.relation.columns[0].type_oid, await types_of(stage, table)) is not None
        return await by_key(stage, KeyQuery(table, ("id",), ((value,),)), types=True)

    (line,) = lines_of(asyncio.run(read()))
    assert line.endswith(b"\tright")
    assert stage.loot() == []


@pytest.mark.attack(gains=GAINS, before="withstood")
@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("to", ["text", "json", "jsonb"])
def test_rows_are_written_by_the_types_own_output_whatever_casts_the_owner_made(
    stage: Stage, to: str, way: str
):
    value = {"text": "'x'", "json": "'{}'::json", "jsonb": "'{}'::jsonb"}[to]
    make(
        stage,
        Kind(
            ("CREATE TYPE own.k AS (a int, b text)", *casts(to, value, "AS IMPLICIT")),
            "own.k",
            "ROW(7, 'x y')",
            "",
        ),
    )

    async def read() -> Answer:
        return await READS[way](stage, await stage.table(), None)

    assert lines_of(asyncio.run(read())) == [b'(7,"x y")\tright']
    assert stage.loot() == []


@pytest.mark.attack(gains=GAINS, before="failed")
def test_the_operator_of_an_extension_in_the_owners_schema_is_not_looked_up_there(stage: Stage):
    # GIVEN a type like citext, made by a superuser in the schema of the owner, and a domain over it with an operator
    database = stage.database
    database.execute("CREATE TYPE own.ci")
    database.execute(
        "CREATE FUNCTION own.ci_in(cstring) RETURNS own.ci LANGUAGE internal IMMUTABLE STRICT AS 'textin'"
    )
    database.execute(
        "CREATE FUNCTION own.ci_out(own.ci) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout'"
    )
    database.execute("CREATE TYPE own.ci (INPUT = own.ci_in, OUTPUT = own.ci_out, LIKE = text)")
    for name, internal in {"lt": "<", "le": "<=", "eq": "=", "ge": ">=", "gt": ">"}.items():
        database.execute(
            f"CREATE FUNCTION own.ci_{name}(own.ci, own.ci) RETURNS boolean LANGUAGE internal IMMUTABLE STRICT "
            f"AS 'text{name if name == 'eq' else '_' + name}'"
        )
        database.execute(
            f"CREATE OPERATOR own.{internal} (LEFTARG = own.ci, RIGHTARG = own.ci, FUNCTION = own.ci_{name})"
        )
    database.execute(
        "CREATE FUNCTION own.ci_cmp(own.ci, own.ci) RETURNS int LANGUAGE internal IMMUTABLE STRICT AS 'bttextcmp'"
    )
    database.execute(
        "CREATE OPERATOR CLASS own.ci_ops DEFAULT FOR TYPE own.ci USING btree AS OPERATOR 1 own.<, OPERATOR 2 own.<=, "
        "OPERATOR 3 own.=, OPERATOR 4 own.>=, OPERATOR 5 own.>, FUNCTION 1 own.ci_cmp(own.ci, own.ci)"
    )
    database.execute(f"GRANT CREATE, USAGE ON SCHEMA own TO {stage.mallory}")
    make(stage, Kind(("CREATE DOMAIN own.k AS own.ci", *_EQUAL), "own.k", "'x'::text::own.ci::own.k", "x"))

    async def read() -> Answer:
        return await by_key(stage, keys(await stage.table(), ("x",)))

    # WHEN the row is read by its key, THEN it comes, and the owner's operator did not run
    assert lines_of(asyncio.run(read())) == [b"x\tright"]
    assert stage.loot() == []

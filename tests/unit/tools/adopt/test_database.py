"""Whether cdcd needs a publication of its own, and which."""

from cdcd.adapters.postgres.publication import Publication, PublishedTable
from cdcd.tools.adopt.database import narrowing
from cdcd.tools.adopt.tables import read_lists


def table(oid: int, name: str, *, columns: tuple[str, ...] | None = None, row_filter: str | None = None):
    return PublishedTable(
        oid,
        "public",
        name,
        "d",
        has_identity=True,
        has_primary_key=True,
        columns=columns,
        row_filter=row_filter,
    )


def publication(*tables: PublishedTable, via_root: bool = False) -> Publication:
    return Publication("dbz_publication", True, (), ("insert", "update"), via_root, tables)


LISTS = read_lists({"table.include.list": r"public\.(orders|Lines)"})


def test_a_publication_that_the_connector_captures_whole_is_used() -> None:
    assert narrowing("cdcd_x", publication(table(1, "orders"), table(2, "lines")), LISTS) is None


def test_else_the_captured_tables_get_one_that_publishes_the_same_of_them() -> None:
    lines = table(2, "Lines", columns=("id", "A b"), row_filter="id > 3")
    found = narrowing(
        "cdcd_x", publication(table(1, "orders"), lines, table(3, "logs"), via_root=True), LISTS
    )
    assert found is not None
    assert found.left_out == ("public.logs",)
    assert found.statement == (
        'CREATE PUBLICATION "cdcd_x" FOR TABLE "public"."orders", "public"."Lines" ("id", "A b") WHERE (id > 3) '
        "WITH (publish = 'insert, update', publish_via_partition_root = true)"
    )
    assert found.is_made_by(publication(table(1, "orders"), lines))
    assert not found.is_made_by(publication(table(1, "orders"), table(2, "Lines")))
    assert not found.is_made_by(publication(table(1, "orders")))

"""Names and texts in SQL and in the replication grammar."""

from typing import Final


def identifier(name: str) -> str:
    """Return `name` as a quoted identifier of SQL and of the replication grammar."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    """Return `value` as a string literal of the replication grammar, which has no backslash escapes
    (repl_scanner.l).
    """
    return "'" + value.replace("'", "''") + "'"


def table_name(schema: str, table: str) -> str:
    """Return an SQL expression for the text of a table, as `core.table_names.table_text` makes it.

    Args:
        schema, table: SQL expressions for the two names.
    """
    return (
        f"CASE WHEN strpos({schema}, '.') = 0 AND strpos({table}, '.') = 0 THEN {schema} || '.' || {table} "
        f"ELSE {_part(schema)} || '.' || {_part(table)} END"
    )


def _part(name: str) -> str:
    return (
        f"CASE WHEN strpos({name}, '.') = 0 AND strpos({name}, '\"') = 0 THEN {name}::text "
        f"ELSE '\"' || replace({name}, '\"', '\"\"') || '\"' END"
    )


TABLE_TEXT: Final = table_name("n.nspname", "c.relname")
"""Text of the relation `c` in the schema `n`."""

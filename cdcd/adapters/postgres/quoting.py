"""Names and texts in SQL and in the replication grammar."""


def identifier(name: str) -> str:
    """Return `name` as a quoted identifier of SQL and of the replication grammar."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    """Return `value` as a string literal of the replication grammar, which has no backslash escapes
    (repl_scanner.l).
    """
    return "'" + value.replace("'", "''") + "'"

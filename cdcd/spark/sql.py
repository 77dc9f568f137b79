"""Names and texts as Spark's SQL has them."""


def quoted(name: str) -> str:
    """`name` as an identifier of SQL."""
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    """`value` as it stands between the quotes of a string of SQL."""
    # Spark's SQL replaces ${...}, wherever it stands.
    return value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")

"""Choice of the tables to compare, and refusal of pipelines that cannot be compared."""

from collections.abc import Callable, Collection, Sequence

from cdcd.config.loading import Config
from cdcd.core.catalog.patterns import TablePattern, parse_pattern
from cdcd.core.errors import ConfigError
from cdcd.core.records.encoder import SKIPPABLE
from cdcd.tools.verify.delivery import Notice


def is_meant(
    name: str,
    patterns: Sequence[TablePattern],
    outbox: Collection[str],
    filtered: Sequence[TablePattern] = (),
) -> bool:
    """Return True if a published table is compared.

    Args:
        patterns: patterns of the chosen tables; () for all.
        outbox: tables whose rows are events, and tables that are read by a query. No topic has all of these rows, so
            they cannot be compared.
        filtered: patterns of tables whose topic has only some of their rows.
    """
    if name in outbox or any(pattern.matches_name(name) for pattern in filtered):
        return False
    return not patterns or any(pattern.matches_name(name) for pattern in patterns)


def check_records(config: Config) -> None:
    """Raise ConfigError if the records lack transaction ids, or the topics leave out operations."""
    if config.event_flattening.enabled:
        raise ConfigError(
            "The pipeline's records are flattened (event_flattening), so they do not tell which transactions they are"
            " of.",
            hint="Compare the rows with a consumer of your own, or verify a pipeline without event_flattening.",
        )
    skipped = [op for op in SKIPPABLE if op in config.topics.skipped_operations]
    if skipped:
        raise ConfigError(
            f"The topics leave out the operations {', '.join(skipped)} (topics.skipped_operations), so they cannot"
            " be equal to the tables.",
            hint="Verify a pipeline that writes all operations.",
        )


def tell_left_out(config: Config, notice: Notice) -> None:
    """Report tables that are not compared because they are outboxes, or because topics lack some of their rows."""
    for name in config.outbox.tables:
        notice(f"{name} is an outbox table (outbox.tables): its rows are events, and are not compared.")
    for name in config.snapshot.queries:
        notice(f"{name} is read by a query (snapshot.queries), and is not compared.")
    for pattern in config.filters.tables:
        notice(f"Tables that match {pattern} have a filter (filters.tables), and are not compared.")
    for pattern in config.routes.tables:
        notice(
            f"Rows of tables that match {pattern} are in several topics (routes.tables), and are not compared."
        )


def chosen(
    config: Config,
    published: Sequence[str],
    patterns: Sequence[TablePattern],
    wanted: Callable[[str], bool] = lambda _: True,
) -> list[str]:
    """Return the published tables that are compared.

    Args:
        wanted: returns True if the target has a table.

    Raises:
        ConfigError: no table is left.
    """
    filtered = [parse_pattern(pattern, "filters.tables") for pattern in config.filters.tables]
    filtered += [parse_pattern(pattern, "routes.tables") for pattern in config.routes.tables]
    outbox = {*config.outbox.tables, *config.snapshot.queries}
    has = config.tables.selection.test()
    meant = [
        name
        for name in published
        if has(name) and is_meant(name, patterns, outbox, filtered) and wanted(name)
    ]
    if not meant:
        raise ConfigError(
            f"The publication {config.postgres.publication} publishes no table that is meant and can be compared.",
            hint="`cdcd check` lists the published tables; --table takes schema.table, * and ?. Tables with a filter "
            "(filters.tables), routes (routes.tables) or a query (snapshot.queries) and outbox tables are not "
            "compared.",
        )
    return meant

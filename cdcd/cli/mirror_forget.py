"""`cdcd mirror forget`: one key is removed from the log, from its table, and from their former versions."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cdcd.cli.mirror_parts import check_pyspark, given, kafka_of, session_for, target_of
from cdcd.cli.options import mirror_option
from cdcd.cli.output import say
from cdcd.core.errors import ConfigError

if TYPE_CHECKING:
    from cdcd.mirror.base.forget import Found, Proof

LEFT: Final = 10
"""Exit code if something of the key may be left."""


@click.command("forget")
@mirror_option()
@click.argument("table", metavar="SCHEMA.TABLE")
@click.argument("key", metavar="COLUMN=VALUE...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do it. Without this option, the command changes nothing.")
@click.pass_context
def forget(context: click.Context, file: Path | None, *, table: str, key: tuple[str, ...], yes: bool) -> int:
    """Remove all that the lakehouse has of one row which was deleted at the source.

    Needs `change_log: fold`. The command removes the key from the log (also from its quarantine), from the table and
    from its table of states (`tables.scd2`), and removes all former versions of them. Then it counts the rows and the
    data files that still have the key. Stop the mirror first. Without --yes, the command only counts the records that
    it would remove. Records in Kafka stay until Kafka deletes them.

    \b
    Exits with
      0   done, or shown
      2   the key does not fit the table, or a tag or a branch keeps former versions
      10  something may be left: files that no version has, or a changelog of a mirror without a log
    """  # noqa: D301  click wants the character, and not a backslash
    from cdcd.config.mirror import load_mirror  # noqa: PLC0415  --help needs none of it
    from cdcd.core.catalog.routing import table_named  # noqa: PLC0415

    assert context.parent is not None, "it is a command of `mirror`"
    config = load_mirror(given(file or context.parent.params["file"]), os.environ)
    named = table_named(table)
    values = _values(key)
    if config.change_log != "fold":
        raise ConfigError(
            f"change_log is {config.change_log}, and cdcd mirror forget knows only tables that are folded from a log.",
            hint="Delete the row and its former versions by statements of your own (docs/mirror.md, Maintenance).",
        )
    check_pyspark()

    from cdcd.mirror.base.forget import Forgetting  # noqa: PLC0415  loads pyspark
    from cdcd.mirror.base.reading import LogTables  # noqa: PLC0415

    spark = session_for(config, f"cdcd mirror forget {config.name}")
    try:
        tables = LogTables(
            spark,
            kafka_of(config),
            target_of(config),
            config.topics.prefix,
            config.topics.schemas,
            config.target.log_table,
            variant=config.tables.json_as == "variant",
        )
        forgetting = Forgetting(tables, named, values)
        found = forgetting.look()
        for line in plan(named, found):
            say(line)
        if not yes:
            say("Nothing was removed. Stop the mirror, and run the command again with --yes.")
            return 0
        proof = forgetting.remove(found)
    finally:
        spark.stop()
    for line in proved(found, proof):
        say(line)
    return LEFT if found.others or any(each.rows or each.strange or each.former for each in proof) else 0


def _values(key: Sequence[str]) -> dict[str, str]:
    """The values of a key by column. UsageError: an argument has no `=`, or names a column again."""
    values: dict[str, str] = {}
    for each in key:
        name, is_given, value = each.partition("=")
        if not is_given or name in values:
            raise click.UsageError("The key is COLUMN=VALUE, once for each column of the key.")
        values[name] = value
    return values


def plan(table: str, found: "Found") -> Iterator[str]:
    """Yield lines about the records that have the key."""
    yield f"{table}: the log has {len(found.records)} records with this key, and the source does not have the row."
    if found.references:
        yield f"{len(found.references)} other records name the key as a former or later key of their row."
    if found.states:
        yield f"The table of states and the changelog have {found.states} rows with this key."
    for name in found.others:
        yield f"{name} may have the key, and stays as it is: a mirror without a log made it."
    if found.other_keys:
        yield f"The row had other keys: {', '.join(found.other_keys)}. Forget them too, if no row has them."
    if found.unreadable:
        yield (
            f"{found.unreadable} records of {found.topic} in quarantine may be of any key. They stay: "
            "cdcd mirror quarantine shows them."
        )


def proved(found: "Found", proof: "Sequence[Proof]") -> Iterator[str]:
    """Yield lines about the rows and files that may still have the key."""
    for each in proof:
        yield f"{each.name}: {each.rows} rows with the key, in {each.files} data files of the version that is left."
        if each.strange:
            yield (
                f"  {each.strange} of these files belong to no version, and may have the key: remove them by "
                "remove_orphan_files (Iceberg) or VACUUM (Delta)."
            )
        if each.former:
            yield (
                f"  The metadata has the least and the greatest values of {each.former} former files: run "
                "rewrite_data_files with rewrite-all, and then this command again."
            )
    for name in found.others:
        yield f"{name} may still have the key: delete its rows and former versions by statements of your own."
    yield (
        f"Kafka deletes the records of {found.topic} by the topic's retention or compaction. Consistent points from "
        "before cannot be read any more."
    )

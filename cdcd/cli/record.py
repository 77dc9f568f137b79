"""`cdcd record`: the stream into files, by a temporary slot."""

import os
from pathlib import Path

import click

from cdcd.cli.options import config_option
from cdcd.cli.output import say


@click.command("record")
@config_option()
@click.option(
    "--directory",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FOLDER",
    help="Folder for the recording, created if missing. Its files hold every value; only their owner may read them.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), metavar="N", help="End after N seconds."
)
def command(file: Path, folder: Path, seconds: float | None) -> int:
    """Record the stream of a temporary slot into files.

    It records all changes that are committed from now on. The publication must exist. It needs neither Kafka nor a
    daemon, and drops the slot when it ends. To record a running daemon, set `record.directory` in its configuration
    instead: such a recording has the rows of snapshots and prepared transactions too.

    `record.bytes_max`, `record.age_s_max` and `record.segment_bytes` apply here too.

    Exits with 0 on Ctrl-C and after --seconds.
    """
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.tools.operations import record  # noqa: PLC0415  a wrong configuration is told first

    def notice(text: str) -> None:
        say(f"note: {text}", err=True)

    record.record(config, folder, seconds, notice=notice)
    return 0

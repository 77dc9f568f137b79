"""`cdcd replay`: a recording through the engine, to standard output, to topics or to nothing."""

import os
import sys
from pathlib import Path

import click

from cdcd.cli.output import say


@click.command("replay")
@click.argument("folder", type=click.Path(path_type=Path), metavar="FOLDER")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Produce the records that a daemon with this configuration would write. Without this option, the records are "
    "those of the daemon that made the recording.",
)
@click.option(
    "--output",
    type=click.Choice(["stdout", "topics", "nothing"]),
    default="stdout",
    show_default=True,
    help="Destination of the records: one JSON object per line; the topics of --config; or nothing.",
)
@click.option(
    "--from",
    "begin",
    default="",
    metavar="LSN|TIME",
    help="Start at the first commit at or after this LSN or time.",
)
@click.option(
    "--to", "end", default="", metavar="LSN|TIME", help="End at the last commit up to this LSN or time."
)
@click.option(
    "--redact",
    "target",
    type=click.Path(path_type=Path),
    metavar="NEW-FOLDER",
    help="Replay nothing. Write a pseudonymous copy of the recording: each value is replaced by one of the same type "
    "and length, and equal values stay equal.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="PATTERN=MODE",
    help="With --redact: how to replace the columns that match <schema>.<table>.<column>, or of all columns of "
    "<schema>.<table>. Modes: replace (the default), keep, null, hash (texts only). The last option that matches "
    "holds. Repeatable.",
)
def command(
    *,
    folder: Path,
    file: Path | None,
    output: str,
    begin: str,
    end: str,
    target: Path | None,
    columns: tuple[str, ...],
) -> int:
    """Replay a recording through the engine, or make it pseudonymous.

    FOLDER is what `record.directory` or `cdcd record --directory` named. Without other options, the records are those
    that the daemon wrote, byte for byte.

    \b
      cdcd replay /var/lib/cdcd/recording --output nothing
      cdcd replay recording --from 0/16B3748 --to 2026-03-01T12:00:00Z
      cdcd replay recording --redact /tmp/for-the-issue
      cdcd replay recording --redact /tmp/copy --column 'public.*=null' --column 'public.*.id=replace'

    If a segment is incomplete because the daemon was killed, the command reads it up to that place and reports that.
    A segment that was altered is an error with its name and the offset.
    """  # noqa: D301  click wants the character, and not a backslash
    if output == "topics" and file is None:
        raise click.UsageError("--output topics needs --config, which names the topics.")
    if target is not None and (file is not None or output != "stdout"):
        raise click.UsageError("--redact writes a recording, and takes neither --config nor --output.")
    if columns and target is None:
        raise click.UsageError("--column needs --redact, which names the new folder.")
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = None if file is None else load_config(file, os.environ)

    from cdcd.adapters.recording.column_modes import parse_mode  # noqa: PLC0415  as above
    from cdcd.tools.operations import replay  # noqa: PLC0415  a wrong configuration is told first

    rules = [parse_mode(each) for each in columns]

    def notice(text: str) -> None:
        say(f"note: {text}", err=True)

    wanted = replay.Range(
        replay.parse_place(begin, "--from") if begin else None,
        replay.parse_place(end, "--to") if end else None,
    )
    try:
        if target is not None:
            replay.redact(folder, target, wanted, rules=rules, notice=notice)
        else:
            replay.replay(folder, config, output, wanted, show=say, notice=notice)
    except BrokenPipeError:
        # What is left in the buffer must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0

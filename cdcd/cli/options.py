"""Options that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., object])


class CommandGroup(click.Group):
    """A group of commands. Its help shows the first sentence of each command, which click would cut to one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, command.get_short_help_str(limit=1000))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def config_option(
    *,
    required: bool = True,
    variable: str = "CDCD_CONFIG",
    whose: str = "The pipeline's configuration, YAML.",
) -> Callable[[Function], Function]:
    """`--config FILE`, or the environment variable.

    Args:
        whose: the help, which says what kind of file it is.
    """
    return click.option(
        "--config",
        "file",
        # Whether the file is there and readable is said by the loader, which knows instruction to remove the cause.
        type=click.Path(path_type=Path),
        metavar="FILE",
        required=required,
        envvar=variable,
        show_envvar=True,
        help=whose,
    )


def mirror_option() -> Callable[[Function], Function]:
    """`--config FILE` of the mirror, or the environment variable."""
    return config_option(
        required=False,
        variable="CDCD_MIRROR_CONFIG",
        whose="YAML file with the configuration of the mirror. The file has the section `target`. The configuration "
        "of the pipeline is another file.",
    )


def url_option() -> Callable[[Function], Function]:
    """`--url URL` of a daemon's HTTP, without the slashes at its end. Other schemes than http and https are refused."""
    return click.option(
        "--url",
        default="",
        metavar="URL",
        callback=_checked_url,
        help="Address of the daemon's HTTP server, if the daemon runs on another machine: http://host:9464",
    )


def _checked_url(_context: click.Context, _option: click.Parameter, url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url} does not begin with http:// or https://", param_hint="--url")
    return url.rstrip("/")


def table_form_options() -> Callable[[Function], Function]:
    """`--format table|json` and `--all`, of commands that show the tables of a pipeline."""
    form = click.option(
        "--format",
        "form",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output format: lines for people, or a JSON object for programs.",
    )
    every = click.option("--all", "all_tables", is_flag=True, help="Show every table.")
    return lambda function: form(every(function))


def checkpoint_of_option() -> Callable[[Function], Function]:
    """`--checkpoint-of`, for a pipeline whose server is gone."""
    return click.option(
        "--checkpoint-of",
        default="",
        metavar="SYSTEM_IDENTIFIER",
        help="Also remove the checkpoint of this other server. Use it if that server no longer exists, or if a "
        "handover to it was abandoned.",
    )

"""Options that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., object])


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
        # Whether the file is there and readable is said by the loader, which knows what to do about it.
        type=click.Path(path_type=Path),
        metavar="FILE",
        required=required,
        envvar=variable,
        show_envvar=True,
        help=whose,
    )


def checkpoint_of_option() -> Callable[[Function], Function]:
    """`--checkpoint-of`, for a pipeline whose server is gone."""
    return click.option(
        "--checkpoint-of",
        default="",
        metavar="SYSTEM_IDENTIFIER",
        help="Also take away the checkpoint of this other server, because it is gone for good, or a handover to this "
        "one is given up.",
    )

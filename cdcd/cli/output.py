"""What commands print, for terminals and for programs."""

import click

from cdcd.core.visible import visible


def say(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print the text, with hidden characters written out, because names and values are anybody's.

    Args:
        err: to standard error.
        nl: end the line.
    """
    click.echo(visible(str(text), lines=True), err=err, nl=nl)

"""`cdcd version`: what runs here, for a report of a bug."""

import platform

import click

from cdcd import __version__
from cdcd.cli.output import say


@click.command("version")
def command() -> None:
    """Show the versions of cdcd and of what it uses."""
    from cdcd.adapters.kafka.client import librdkafka_version  # noqa: PLC0415
    from cdcd.adapters.postgres.version import libpq_version, psycopg_version  # noqa: PLC0415
    from cdcd.build import is_compiled  # noqa: PLC0415  completion and --help need none of it

    rows = {
        "cdcd": f"{__version__} ({'compiled' if is_compiled() else 'pure Python'})",
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {platform.machine()})",
        "psycopg": psycopg_version(),
        "libpq": libpq_version(),
        "librdkafka": librdkafka_version(),
    }
    for name, version in rows.items():
        say(f"{name:<11}{version}")

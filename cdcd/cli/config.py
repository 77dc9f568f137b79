"""`cdcd config`: what is in effect, and what there is."""

import json
import os
from pathlib import Path

import click

from cdcd.cli.options import config_option


@click.command("config")
@config_option(required=False)
@click.option(
    "--schema", is_flag=True, help="Print the JSON schema of the file instead, for editors and Helm."
)
@click.option(
    "--reference", is_flag=True, help="Print a file with every key, its default and its meaning instead."
)
def command(file: Path | None, *, schema: bool, reference: bool) -> None:
    """Show the configuration in effect, its schema or its reference.

    In effect are defaults, file, environment and files of secrets together. Secrets are masked. A wrong
    configuration ends with exit code 2 and every problem that it has.
    """
    if schema and reference:
        raise click.UsageError("Give --schema or --reference, not both.")
    if file is None and not (schema or reference):
        raise click.UsageError("Missing option '--config'.")

    from cdcd.config import reference as pages  # noqa: PLC0415  completion and --help need none of it
    from cdcd.config.loading import load_config  # noqa: PLC0415

    if schema:
        click.echo(json.dumps(pages.json_schema(), indent=2))
    elif reference:
        click.echo(pages.reference_yaml(), nl=False)
    elif file is not None:
        click.echo(pages.effective_yaml(load_config(file, os.environ)), nl=False)

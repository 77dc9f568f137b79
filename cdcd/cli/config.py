"""`cdcd config`: what is in effect, and what there is."""

import json
import os
from pathlib import Path

import click

from cdcd.cli.options import config_option
from cdcd.cli.output import say


@click.command("config")
@config_option(required=False)
@click.option("--changed", is_flag=True, help="Show only the keys whose values differ from the defaults.")
@click.option(
    "--schema", is_flag=True, help="Print the JSON schema of the file instead, for editors and Helm."
)
@click.option(
    "--reference", is_flag=True, help="Print a file with every key, its default and its meaning instead."
)
@click.option(
    "--examples",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the examples to this folder instead: configurations, SQL, alerts, dashboard, systemd, Spark.",
)
def command(
    file: Path | None, *, changed: bool, schema: bool, reference: bool, examples: Path | None
) -> None:
    """Show the configuration in effect, its schema or its reference.

    The configuration in effect combines defaults, file, environment and files of secrets. Secrets are masked. With
    --examples, the command writes examples instead. If the configuration is wrong, the command prints every problem
    and exits with 2.
    """
    if changed + schema + reference + (examples is not None) > 1:
        raise click.UsageError("Use only one of --changed, --schema, --reference and --examples.")
    if file is None and not (schema or reference or examples):
        raise click.UsageError("Missing option '--config'.")

    if examples is not None:
        from cdcd.cli.example_files import write_examples  # noqa: PLC0415  as below

        for path in write_examples(examples):
            say(path)
        return

    from cdcd.config import reference as pages  # noqa: PLC0415  completion and --help need none of it
    from cdcd.config.loading import load_config  # noqa: PLC0415

    if schema:
        say(json.dumps(pages.json_schema(), indent=2))
    elif reference:
        say(pages.reference_yaml(), nl=False)
    elif file is not None:
        show = pages.changed_yaml if changed else pages.effective_yaml
        say(show(load_config(file, os.environ)), nl=False)

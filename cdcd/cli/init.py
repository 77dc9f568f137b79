"""`cdcd init`: the first configuration, and the SQL that goes with it."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from cdcd.cli.output import say
from cdcd.core.errors import CdcdError

T = TypeVar("T")


@click.command("init")
@click.option(
    "--dsn", metavar="DSN", help="The database, as a role that may read its catalog: postgresql://..."
)
@click.option(
    "--kafka", metavar="HOST:PORT", help="Addresses of Kafka's brokers (host:port), separated by commas."
)
@click.option("--name", metavar="NAME", help="Name of the pipeline. [default: the name of the database]")
@click.option("--role", metavar="ROLE", help="The role that cdcd will connect as.  [default: cdcd]")
@click.option(
    "--table", "tables", multiple=True, metavar="PATTERN", help='May be repeated.  [default: "public.*"]'
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default="cdcd.yaml",
    show_default=True,
    help="The configuration.",
)
@click.option(
    "--sql", type=click.Path(path_type=Path), default="cdcd.sql", show_default=True, help="The SQL."
)
@click.option(
    "--no-input",
    is_flag=True,
    help="Ask no questions: use the options, and the default of each missing option.",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def command(
    *,
    dsn: str | None,
    kafka: str | None,
    name: str | None,
    role: str | None,
    tables: tuple[str, ...],
    output: Path,
    sql: Path,
    no_input: bool,
    force: bool,
) -> int:
    """Write a first cdcd.yaml, and the SQL that a DBA runs.

    Asks for values that no option gives, reads the catalog of the database, and writes two files: the configuration,
    without secrets, and the SQL for role, rights and publication. The command changes nothing in the database. If one
    of the files exists, the command writes nothing.
    """
    from cdcd.tools.operations import first_files  # noqa: PLC0415  --help needs none of it

    if not force:
        first_files.refuse_existing((output, sql))
    asker = _Asker(no_input)
    dsn, database = asker.until_good(
        "--dsn", dsn, "PostgreSQL, such as postgresql://user@host:5432/database", None, first_files.database
    )
    role = asker.ask("--role", role, "The role that cdcd will connect as", "cdcd")
    name = asker.ask("--name", name, "Name of the pipeline", first_files.name_for(database))
    publication = f"cdcd_{name}"
    given = ", ".join(tables) or None
    asked, found = asker.until_good(
        "--table",
        given,
        "Tables, as patterns with commas between",
        "public.*",
        lambda text: first_files.look(dsn, role, tables or _patterns(text), publication),
    )
    kafka = asker.ask("--kafka", kafka, "Kafka's brokers", None)
    brokers, why = first_files.count_brokers(kafka)
    if why:
        say(f"note: {why}. The configuration was written although the database did not answer.", err=True)
    answers = first_files.Answers(
        name,
        first_files.pipeline_dsn(dsn, role, found),
        role,
        tables or _patterns(asked),
        kafka,
        brokers,
        first_files.admin_dsn(dsn, found),
    )
    text = first_files.configuration(answers, found)
    first_files.check_text(text, answers)
    first_files.write({output: text, sql: first_files.statements(answers, found, str(sql))}, force=force)
    count = len(found.tables)
    say(f"{output} and {sql} are written, for {count} table{'' if count == 1 else 's'}.")
    for warning in first_files.warnings(found, str(sql)):
        say(f"warning: {warning}", err=True)
    for at, (what, commands) in enumerate(
        first_files.steps(answers, found, file=str(output), sql=str(sql)), 1
    ):
        say(f"{at}. {what}")
        for line in commands:
            say(f"     {line}")
    return 0


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


class _Asker:
    def __init__(self, no_input: bool) -> None:
        self._no_input = no_input

    def ask(self, option: str, given: str | None, question: str, default: str | None) -> str:
        """What was given, or is answered. UsageError: nothing was given, and nothing may be asked."""
        if given is not None:
            return given
        if not self._no_input:
            return str(click.prompt(question, default=default, err=True))
        if default is None:
            raise click.UsageError(f"{option} is needed with --no-input.")
        return default

    def until_good(
        self, option: str, given: str | None, question: str, default: str | None, look: Callable[[str], T]
    ) -> tuple[str, T]:
        """The answer, and what `look` makes of it. An answer that leads to an error is asked for again."""
        while True:
            answer = self.ask(option, given, question, default)
            try:
                return answer, look(answer)
            except CdcdError as error:
                if given is not None or self._no_input:
                    raise
                say(f"{error.message}\n{error.hint}".rstrip(), err=True)

"""From a connector's configuration, in a file or in Kafka Connect, to cdcd's: the findings, the tables, the
publication, and the file that is written.

options  ->  findings  ->  keys  ->  cdcd.yaml
                ^
                └─ what the database has: tables, publication
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cdcd.adapters.credentials.tokens import access
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.client import split
from cdcd.adapters.postgres.connection import connect, parse_dsn
from cdcd.adapters.postgres.publication import Publication, PublishedTable, read_candidates, read_publication
from cdcd.config.loading import Config
from cdcd.core.errors import CdcdError, ConfigError
from cdcd.tools.adopt import settings
from cdcd.tools.adopt.cloud import of_cloud, with_registry
from cdcd.tools.adopt.connect_api import Connector, read_file
from cdcd.tools.adopt.database import Narrowing, captured, narrowing, own_publication, read_known
from cdcd.tools.adopt.judging import (
    OVERRIDE,
    OptionFinding,
    is_of_transforms,
    judge,
    with_present_names,
    with_worker,
)
from cdcd.tools.adopt.own_slot import own_slot, with_name
from cdcd.tools.adopt.reach import KnownTable
from cdcd.tools.adopt.references import References
from cdcd.tools.adopt.settings import Settings
from cdcd.tools.adopt.tables import OPTIONS, Choice, Lists, choose, read_lists
from cdcd.tools.adopt.transforms import routing_columns
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind
from cdcd.tools.operations.first_files import write

_NAMED_MAX: Final = 5
_KAFKA_S: Final = 10.0
"""Seconds that Kafka may take to list its topics."""

FOUND: Final = 10
"""The exit code if an option is impossible or unknown (`errors.EXIT_CODES`)."""

BLOCKING: Final = (VerdictKind.IMPOSSIBLE, VerdictKind.UNKNOWN)
"""Kinds of findings that a person must accept by name before a takeover."""


@dataclass(frozen=True, slots=True)
class Database:
    """What the connector's database has.

    Attributes:
        tables: every one that could be published, by schema and name.
        publication: the connector's; None: there is none.
        known: those that the connector captures, with their columns.
        topics: those of Kafka, if an event router chooses among them and Kafka could be asked.
        unpublished: what could be published, but for partitioned tables, whose rows are in their partitions.
    """

    tables: tuple[tuple[str, str], ...]
    publication: Publication | None
    known: tuple[KnownTable, ...]
    unpublished: tuple[PublishedTable, ...] = ()
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Adoption:
    """What becomes of a connector.

    Attributes:
        settings: the keys of cdcd.yaml.
        draft: keys that a person completes. They are comments in cdcd.yaml.
        config: the same, as cdcd reads them, with stand-ins for secrets that are not here.
        lists: the connector's lists of tables.
        narrowing: the publication that must be made; None: the connector's is used, or the database was not asked.
        not_asked: why the database was not looked at; None: it was, or was not to be.
        connector_slot: the slot that the connector reads. cdcd reads another one if it cannot read this slot.
    """

    findings: tuple[OptionFinding, ...]
    settings: settings.Settings
    config: Config
    references: References
    lists: Lists
    narrowing: Narrowing | None
    not_asked: CdcdError | None
    draft: Settings
    connector_slot: str

    def of(self, *kinds: VerdictKind) -> list[OptionFinding]:
        return [finding for finding in self.findings if finding.verdict.kind in kinds]

    @property
    def blocking(self) -> list[str]:
        """The options that stand in the way of a takeover."""
        return [finding.name for finding in self.of(*BLOCKING)]

    def is_blocked(self, accepted: Collection[str]) -> bool:
        """Whether an option stands in the way of a takeover that is not among the accepted ones."""
        return "all" not in accepted and not set(self.blocking) <= set(accepted)

    def exit_code(self, accepted: Collection[str]) -> int:
        """0: nothing stands in the way, or what does is accepted; else that of what does not fit.

        Args:
            accepted: names of options; `all` stands for all of them.
        """
        if self.is_blocked(accepted):
            return FOUND
        return 0 if self.not_asked is None else self.not_asked.exit_code

    def refuse_unneeded(self, accepted: Collection[str]) -> None:
        """ConfigError: an accepted name is none of an option that stands in the way, so it may be misspelt."""
        if unneeded := sorted(set(accepted) - {"all"} - set(self.blocking)):
            raise ConfigError(
                f"--accept {unneeded[0]} is not needed: no option of this name prevents the takeover.",
                hint=f"Options that prevent a takeover: {', '.join(self.blocking) or 'none'}.",
            )

    def refuse_unasked(self) -> None:
        """What could not be asked is raised. ConfigError: a secret is not here, without which no side can be."""
        if self.missing:
            raise ConfigError(
                f"{_listed(self.missing)} {'is' if len(self.missing) == 1 else 'are'} not here, so the takeover "
                "cannot ask PostgreSQL and Kafka. Nothing was touched.",
                hint="Set these variables in the environment of this command, and make these files readable for it.",
            )
        if self.not_asked is not None:
            raise self.not_asked

    @property
    def driver_confirms(self) -> bool:
        """Whether the connector's driver may move the slot past its offset."""
        return ("lsn.flush.mode", "connector_and_driver") in self._values

    @property
    def _values(self) -> set[tuple[str, str]]:
        return {(finding.name, finding.value.lower()) for finding in self.findings}

    @property
    def missing(self) -> list[str]:
        """Secrets that are not here: variables and files."""
        return settings.missing_secrets(self.settings, self.references)


Look = Callable[[Config, Sequence[str], Lists, Collection[str]], Database]
"""Reads the database of a configuration, as `look_at_database` does."""


def adopt(
    options: Mapping[str, str], extra: Mapping[str, object], file: str, *, look: Look | None
) -> Adoption:
    """What becomes of a connector with these options.

    Args:
        extra: keys of cdcd's that are given beside the connector's configuration; they win.
        file: the configuration's name, for errors.
        look: reads the database's tables and publication, which are compared if they can be read; None: nothing is
            compared.

    Raises ConfigError: no configuration of cdcd's can be made of it.
    """
    options = of_cloud(with_present_names(options))
    references = References()
    findings = with_registry(judge(options, references), references)
    lists = read_lists(options)
    prefix = options.get("topic.prefix", "").strip()
    is_unnamed = "name" not in extra and not options.get("name", "").strip()
    if is_unnamed:
        findings = with_name(findings, prefix)
    # What transforms become is for the records, and may depend on the database. So do rules for columns.
    keys = {**keys_of([each for each in findings if not is_of_transforms(each)]), **extra}
    _require(keys)
    config = settings.checked(settings.nested(keys), references, file)
    database: Database | None = None
    not_asked: CdcdError | None = None
    if look is not None:
        missing = settings.missing_secrets(settings.nested(keys), references)
        try:
            database = look(config, missing, lists, routing_columns(options))
        except CdcdError as error:
            not_asked = error
    if database is not None:
        findings = with_registry(judge(options, references, database.known, database.topics), references)
        findings = with_name(findings, prefix) if is_unnamed else findings
    findings = _with_tables(
        findings, lists, choose(lists, None if database is None else database.tables), options
    )
    own = own_slot(findings, f"cdcd_{config.name}")
    narrowed = None
    if database is not None and own.needs_publication:
        narrowed = own_publication(own.name, database.unpublished, lists)
    elif database is not None:
        narrowed = _narrowed(config.name, database, lists)
    findings = [
        _with_publication(finding, database, narrowed, lists)
        if finding.name == "publication.name" and not own.needs_publication
        else finding
        for finding in findings
    ]
    findings = [own.judged(finding, is_known=database is not None) for finding in findings]
    findings = _that_fit(findings, extra, references, file)
    made = settings.nested({**keys_of(findings), **extra})
    return Adoption(
        tuple(findings),
        made,
        settings.checked(made, references, file),
        references,
        lists,
        narrowed,
        not_asked,
        settings.drafted(settings.merged([finding.verdict.draft for finding in findings])),
        config.postgres.slot,
    )


def keys_of(findings: Sequence[OptionFinding]) -> dict[str, object]:
    """The keys of the findings. Transforms come last, because they change what the connector has made."""
    ordered = sorted(findings, key=is_of_transforms)
    return settings.merged([finding.verdict.keys for finding in ordered])


def _that_fit(
    findings: Sequence[OptionFinding], extra: Mapping[str, object], references: References, file: str
) -> list[OptionFinding]:
    """The findings, in which transforms have no keys if cdcd refuses these beside the others."""
    try:
        settings.checked(settings.nested({**keys_of(findings), **extra}), references, file)
    except ConfigError as error:
        why = (
            f"cdcd refuses the keys that replace the transforms: {error.message} Write the keys into cdcd.yaml by "
            f"hand, and accept this option."
        )
        return [
            replace(finding, verdict=Verdict(VerdictKind.IMPOSSIBLE, why))
            if is_of_transforms(finding) and finding.verdict.keys
            else finding
            for finding in findings
        ]
    return list(findings)


def _require(keys: Mapping[str, object]) -> None:
    if "kafka.bootstrap_servers" not in keys:
        raise ConfigError(
            "Kafka's brokers are not known: a connector's configuration does not name them.",
            hint="Give them by --kafka HOST:PORT, or give the worker's properties by --worker FILE.",
        )
    absent = [
        option
        for option, key in (("database.hostname", "dsn.host"), ("topic.prefix", "topics.prefix"))
        if key not in keys
    ]
    if absent:
        raise ConfigError(
            f"The configuration has no {' and no '.join(absent)}: it is not one of Debezium's PostgreSQL connector.",
            hint="Give the connector's own configuration: `curl http://connect:8083/connectors/NAME/config` shows it.",
        )


def look_at_database(
    config: Config, missing: Sequence[str], lists: Lists, routing: Collection[str]
) -> Database:
    """Read the connector's publication and tables.

    Args:
        missing: secrets that are not here, so that the database cannot be reached.
        routing: columns whose values choose the topics of events.

    Raises CdcdError: the database cannot be read.
    """
    if missing:
        raise ConfigError(
            f"The database was not asked, because {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} "
            "not here.",
            hint="Set it in the environment of this command, and run it again; or compare by `cdcd check` later.",
        )
    return asyncio.run(_ask(config, lists, routing))


async def _ask(config: Config, lists: Lists, routing: Collection[str]) -> Database:
    connection = await connect(
        parse_dsn(*config.postgres.access()),
        application_name=f"{config.name} adopt",
        connect_timeout_s=config.postgres.connect_timeout_s,
    )
    try:
        publication = await read_publication(connection, config.postgres.publication)
        candidates = await read_candidates(connection)
        tables = [each.table for each in candidates] if publication is None else publication.tables
        known = await read_known(connection, captured(tables, lists), config, routing)
    finally:
        await connection.close()
    names = dict.fromkeys((each.table.schema, each.table.name) for each in candidates)
    if publication is not None:
        names |= dict.fromkeys((table.schema, table.name) for table in publication.tables)
    leaves = tuple([each.table for each in candidates if each.table.oid not in each.ancestors])
    topics = await asyncio.to_thread(_topics, config) if routing else frozenset[str]()
    return Database(tuple(names), publication, known, leaves, topics)


def _topics(config: Config) -> frozenset[str]:
    """The topics of Kafka; none, if Kafka cannot be asked."""
    try:
        connection, _ = split(*access(config.kafka))
        return frozenset(Admin(connection, _KAFKA_S).names())
    except CdcdError:
        return frozenset()


def _with_tables(
    findings: Sequence[OptionFinding], lists: Lists, choice: Choice, options: Mapping[str, str]
) -> list[OptionFinding]:
    """The findings, in which the lists of tables have the verdict of their choice."""
    verdict = _tables_verdict(lists, choice)
    return [
        replace(finding, verdict=verdict)
        if finding.name in OPTIONS and options.get(finding.name, "").strip()
        else finding
        for finding in findings
    ]


def _tables_verdict(lists: Lists, choice: Choice) -> Verdict:
    if lists.unreadable:
        return Verdict(
            VerdictKind.IMPOSSIBLE,
            f"Only Java reads {_listed(lists.unreadable)}. Name the tables in postgres.tables, and check that the "
            f"publication has no other tables.",
        )
    if choice.patterns is None:
        return Verdict(
            VerdictKind.UNKNOWN,
            "The database has no table that the connector captures."
            if choice.is_checked
            else "It cannot be translated without the database. Run this where the database can be reached, without "
            "--offline.",
        )
    keys = {"postgres.tables": list(choice.patterns)} if choice.patterns else {}
    shown = _listed(choice.patterns) or "all tables"
    if choice.excluded:
        return Verdict(
            VerdictKind.DIFFERENT,
            f"postgres.tables: {shown}; tables.exclude: {_listed(choice.excluded)}. Not compared with the database: "
            f"the patterns may match other tables if names differ only in case or have a point.",
            {**keys, "tables.exclude": list(choice.excluded)},
        )
    if choice.is_exact and choice.is_checked:
        return Verdict(
            VerdictKind.SAME, f"postgres.tables: {shown}. Both select the same tables of the database.", keys
        )
    if choice.is_exact:
        return Verdict(
            VerdictKind.DIFFERENT,
            f"postgres.tables: {shown}. Not compared with the database: the patterns may match other tables if names "
            f"differ only in case or have a point.",
            keys,
        )
    return Verdict(
        VerdictKind.DIFFERENT,
        f"postgres.tables: {shown}. No pattern matches the same tables, so this is the list of the present tables. "
        f"Add later tables to the publication.",
        keys,
    )


def _narrowed(pipeline: str, database: Database, lists: Lists) -> Narrowing | None:
    if database.publication is None or lists.unreadable or not lists.given:
        return None
    found = narrowing(f"cdcd_{pipeline}", database.publication, lists)
    if found is not None and not found.tables:
        raise ConfigError(
            f"Publication {database.publication.name} has none of the tables that the connector captures.",
            hint="The connector delivers nothing. Correct table.include.list, or add tables to the publication.",
        )
    return found


def _with_publication(
    finding: OptionFinding, database: Database | None, narrowed: Narrowing | None, lists: Lists
) -> OptionFinding:
    """The finding of publication.name, with what the database has."""
    if database is None:
        why = "Not compared with the database. cdcd delivers all tables of the publication: check that the connector "
        "leaves no table out."
        verdict = Verdict(VerdictKind.DIFFERENT, why, finding.verdict.keys)
        return replace(finding, verdict=verdict) if lists.given else finding
    if database.publication is None:
        return replace(
            finding,
            verdict=Verdict(
                VerdictKind.UNKNOWN,
                "There is no such publication. A slot sends nothing for a publication that is created later. Check "
                "whether the connector runs.",
                finding.verdict.keys,
            ),
        )
    if narrowed is None:
        return finding
    count = len(narrowed.left_out)
    return replace(
        finding,
        verdict=Verdict(
            VerdictKind.DIFFERENT,
            f"It also has {count} {'table' if count == 1 else 'tables'} that the connector leaves out "
            f"({_listed(narrowed.left_out)}), and cdcd delivers all tables of its publication. cdcd reads publication "
            f"{narrowed.name} instead, which --takeover creates while the connector runs.",
            {"postgres.publication": narrowed.name},
        ),
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED_MAX])
    return shown if len(names) <= _NAMED_MAX else f"{shown} and {len(names) - _NAMED_MAX} more"


def read(
    source: Connector | Path,
    worker: Path | None,
    kafka: str | None,
    name: str | None,
    file: Path,
    *,
    offline: bool,
) -> Adoption:
    """What becomes of the connector.

    Args:
        worker: file with the properties of Connect's worker.
        kafka: the brokers; None: those of the worker's properties, or of the connector's own producer.
        name: of the pipeline; None: that of the connector.
        file: what will be written.

    Raises:
        ConfigError: a file cannot be read, or is none of a connector's.
        ConnectError: Connect does not answer, or refuses.
    """
    options = source.options() if isinstance(source, Connector) else read_file(source)
    inherited = {} if worker is None else read_file(worker)
    extra: dict[str, object] = {} if name is None else {"name": name}
    brokers = kafka or (
        None if f"{OVERRIDE}bootstrap.servers" in options else inherited.get("bootstrap.servers")
    )
    if brokers is not None:
        extra["kafka.bootstrap_servers"] = brokers
    return adopt(
        with_worker(options, inherited), extra, str(file), look=None if offline else look_at_database
    )


def save(file: Path, text: str, *, force: bool) -> bool:
    """Write the file; False: it is there with the same text, as after a run that was interrupted.

    Raises ConfigError: it is there with another text and `force` is not given, or cannot be written.
    """
    if file.exists() and not force:
        try:
            if file.read_text(encoding="utf-8") == text:
                return False
        except (OSError, UnicodeDecodeError):
            pass
        raise ConfigError(
            f"{file} is there already, with another text, and was not written.",
            hint="Name another file (--output), or let cdcd overwrite it: --force.",
        )
    write({file: text}, force=force)
    return True

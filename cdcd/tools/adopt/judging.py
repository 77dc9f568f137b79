"""Goes through the configuration of a connector: a finding for each option, also for those that nobody set."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cdcd.config.masking import is_secret_name, mask_text
from cdcd.tools.adopt.column_options import of_columns
from cdcd.tools.adopt.options_cloudevents import counts, not_flattened, of_events
from cdcd.tools.adopt.options_connect import CONNECT, KERBEROS, PRODUCER
from cdcd.tools.adopt.options_heartbeat import of_heartbeat
from cdcd.tools.adopt.options_records import FORM, TOPICS
from cdcd.tools.adopt.options_registry import USER_INFO, has_registry, is_foreign
from cdcd.tools.adopt.options_snapshot import SNAPSHOT
from cdcd.tools.adopt.options_source import CONNECTION, PUBLICATION, RUNNING, SLOT
from cdcd.tools.adopt.reach import Known
from cdcd.tools.adopt.references import References, has_placeholder, secret_file
from cdcd.tools.adopt.transforms import Judged, judge_transforms, of_option
from cdcd.tools.adopt.verdicts import Kind, Option, Verdict, lacks

OPTIONS: Final[tuple[Option, ...]] = (
    *CONNECT,
    *CONNECTION,
    *SLOT,
    *PUBLICATION,
    *SNAPSHOT,
    *RUNNING,
    *FORM,
    *TOPICS,
)
"""All options of a connector but those of its producer."""

OVERRIDE: Final = "producer.override."
"""What the names of a connector's producer properties begin with."""

WORKER_PRODUCER: Final = "producer."
"""What they begin with in a worker's properties."""

_FROM_WORKER: Final = ("key.converter", "value.converter", "header.converter", "topic.creation.enable")
"""A worker's properties that hold for connectors without their own."""

_JAAS: Final = "sasl.jaas.config"
_LOGIN: Final = re.compile(
    r"\s*org\.apache\.kafka\.common\.security\.(?:plain\.Plain|scram\.Scram)LoginModule\s+\w+\s+(.*);\s*",
    re.DOTALL,
)
_KERBEROS_LOGIN: Final = "Krb5LoginModule"
_PAIR: Final = re.compile(r"(\w+)\s*=\s*(?:\"((?:\\.|[^\"\\])*)\"|([^\s;]+))")

_SHOWN_MAX: Final = 60

_OF_JSON: Final = ("schemas.enable", "replace.null.with.default")
"""Options of JsonConverter that the other converters do not have."""

_HIDDEN: Final = "***"
"""Stands for the value of a secret where a rule asks whether there is one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What becomes of one option.

    Attributes:
        name: as the connector's configuration has it. Where the name itself holds a secret, the name of its kind.
        value: "" if it may be secret, or is too long to be shown.
        is_default: nobody set it; `value` is what Debezium takes.
    """

    name: str
    value: str
    is_default: bool
    verdict: Verdict


def with_worker(options: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """The connector's options, and those of the worker's properties that hold where the connector has none."""
    inherited: dict[str, str] = {}
    for name, value in worker.items():
        if name.startswith(WORKER_PRODUCER):
            inherited[f"{OVERRIDE}{name.removeprefix(WORKER_PRODUCER)}"] = value
        elif name in _FROM_WORKER or (
            # Connect takes a converter's options from where it takes the converter.
            name.startswith(("key.converter.", "value.converter."))
            and f"{name.partition('.')[0]}.converter" not in options
        ):
            inherited[name] = value
    return {**inherited, **options}


def judge(options: Mapping[str, str], references: References, known: Known = None) -> list[Finding]:
    """The findings, in the order of the tables; what no table has comes last.

    Args:
        references: gets the variables that the findings' keys refer to.
        known: the captured tables, by which transforms are judged; None: the database was not asked.
    """
    transforms = judge_transforms(options, references, known)
    found = [
        (option, _with_others(finding, options, transforms, known))
        for option, finding in (_judged(name, value, references) for name, value in options.items())
    ]
    found += _defaults(options)
    places = {name: place for place, name in enumerate([option.name for option in (*OPTIONS, *PRODUCER)])}
    ordered = sorted(found, key=lambda pair: places.get(pair[0].name, -1) if pair[0] else len(places))
    return _agreed([finding for _, finding in ordered])


def is_of_transforms(finding: Finding) -> bool:
    """Whether the option is one of the connector's transforms."""
    return finding.name.partition(".")[0] == "transforms"


def _with_others(finding: Finding, options: Mapping[str, str], transforms: Judged, known: Known) -> Finding:
    """The finding, as other options of the connector change it."""
    if is_of_transforms(finding):
        verdict = of_option(finding.name, transforms, finding.verdict)
        return replace(finding, verdict=not_flattened(options, verdict))
    columns = of_columns(finding.name, options.get(finding.name, ""), known, finding.verdict)
    finding = replace(finding, verdict=of_heartbeat(finding.name, options, columns))
    found = _without_effect(finding, options)
    return replace(found, verdict=of_events(finding.name, options, found.verdict))


def _without_effect(finding: Finding, options: Mapping[str, str]) -> Finding:
    """The finding, unless the connector's converter does not have the option."""
    part, _, rest = finding.name.partition(".converter.")
    converter = options.get(f"{part}.converter", "")
    if (converter and is_foreign(finding.name, converter)) or (rest in _OF_JSON and has_registry(converter)):
        why = f"{part}.converter does not have this option."
        return replace(finding, verdict=Verdict(Kind.IRRELEVANT, why))
    return finding


def _agreed(findings: list[Finding]) -> list[Finding]:
    """The findings, where cdcd has one registry for keys and values: two different ones are refused."""
    values = {
        key: value
        for finding in findings
        if not finding.name.startswith("key.")
        for key, value in finding.verdict.keys.items()
    }
    agreed: list[Finding] = []
    for finding in findings:
        keys = finding.verdict.keys
        if finding.name.startswith("key.") and any(
            values.get(key, value) != value for key, value in keys.items() if key.startswith("registry.")
        ):
            why = "cdcd has one setting for keys and values, and takes that of the values."
            finding = replace(finding, verdict=lacks(why))  # noqa: PLW2901
        if keys.get("format.key") == "avro" and "avro" not in (
            values.get("format.value"),
            values.get("cloudevents.data"),
        ):
            why = "cdcd writes keys in Avro beside values or data in Avro only. The key is JSON."
            finding = replace(finding, verdict=lacks(why))  # noqa: PLW2901
        if keys.get("format.key") == "protobuf" and values.get("format.value") != "protobuf":
            why = "cdcd writes keys in Protobuf beside values in Protobuf only. The key is JSON."
            finding = replace(finding, verdict=lacks(why))  # noqa: PLW2901
        agreed.append(finding)
    return agreed


def _judged(name: str, value: str, references: References) -> tuple[Option | None, Finding]:
    option = find(name)
    if option is None:
        return None, Finding(name, "", is_default=False, verdict=_unknown(name))
    shown_name = option.name if option.is_secret and option.is_family else name
    hidden = option.is_secret or option.name.endswith("*") or is_secret_name(name)
    shown = "" if hidden else mask_text(value)
    return option, Finding(
        shown_name,
        shown if len(shown) <= _SHOWN_MAX else "",
        is_default=False,
        verdict=_verdict(option, name, value.strip(), references),
    )


def find(name: str) -> Option | None:
    """The row of the tables for an option: the one of its own name, else the first of a family."""
    table, inner = (PRODUCER, name.removeprefix(OVERRIDE)) if name.startswith(OVERRIDE) else (OPTIONS, name)
    exact = next((option for option in table if option.name == inner), None)
    return exact or next((option for option in table if option.is_family and option.matches(inner)), None)


def _verdict(option: Option, name: str, value: str, references: References) -> Verdict:
    if not value and option.default is None:
        return Verdict(Kind.IRRELEVANT, "It is empty.")
    if name.endswith(_JAAS):
        return _login(name, value, references)
    if name.endswith(USER_INFO):
        return _user_info(value, references)
    if option.is_secret:
        return _secret(option, name, value, references)
    replaced = references.replace(value, name)
    try:
        return option.judge(name, replaced)
    except ValueError as error:
        if has_placeholder(value):
            return Verdict(
                Kind.UNKNOWN,
                "A config provider of the worker has its value. Write the value, and run this again.",
            )
        return Verdict(Kind.UNKNOWN, f"Its value is not one that Debezium's manual has: it {error}.")


def _secret(option: Option, name: str, value: str, references: References) -> Verdict:
    plain = option.judge(name, _HIDDEN)
    if not plain.keys:
        return plain
    (key,) = plain.keys
    file = secret_file(value)
    if file is not None and (
        key in ("postgres.password", "registry.token") or key.startswith("kafka.properties.")
    ):
        at = (
            key.replace("properties", "properties_files", 1)
            if key.startswith("kafka.properties.")
            else f"{key}_file"
        )
        return Verdict(Kind.SAME, f"{at}.", {at: file})
    reference = references.secret(name, value)
    why = f"{key} is {reference}: set this variable for cdcd. The value is not written into the file."
    return Verdict(Kind.SAME, why, {key: reference})


def _login(name: str, value: str, references: References) -> Verdict:
    """User and password of JAAS' modules for PLAIN and SCRAM."""
    if _KERBEROS_LOGIN in value:
        return _kerberos_login(value, references)
    match = _LOGIN.fullmatch(value)
    pairs = {
        key: re.sub(r"\\(.)", r"\1", quoted) if quoted else bare
        for key, quoted, bare in _PAIR.findall(match[1] if match else "")
    }
    if "username" not in pairs or "password" not in pairs:
        return lacks(
            "Only the login modules for PLAIN and SCRAM can be read. Set sasl.mechanism and the like in "
            "kafka.properties, tokens by kafka.oauth (docs/clouds.md)."
        )
    reference = references.secret(f"{name.removesuffix(_JAAS)}sasl.password", pairs["password"])
    return Verdict(
        Kind.SAME,
        f"sasl.username and sasl.password in kafka.properties; the password is {reference}: set this variable for "
        "cdcd.",
        {
            "kafka.properties.sasl.username": references.replace(pairs["username"], "sasl.username"),
            "kafka.properties.sasl.password": reference,
        },
    )


def _kerberos_login(value: str, references: References) -> Verdict:
    """The verdict on the JDK's module for Kerberos. Principal and key tab are not secrets."""
    given = {name.lower(): quoted or bare for name, quoted, bare in _PAIR.findall(value)}
    keys = {
        f"kafka.properties.sasl.kerberos.{name}": references.replace(given[name], f"sasl.kerberos.{name}")
        for name in ("principal", "keytab")
        if name in given
    }
    return Verdict(Kind.IMPOSSIBLE, KERBEROS, keys)


def _user_info(value: str, references: References) -> Verdict:
    """User and password for a schema registry, with a colon between them."""
    user, colon, password = value.partition(":")
    if not colon or (has_placeholder(value) and not has_placeholder(password)):
        return lacks("Set registry.user and registry.password_file: the value is not user:password.")
    # Keys and values have the same variable where they have the same password.
    others = {**references.given}
    reference = references.secret("registry.password", password)
    if any(others.get(variable, given) != given for variable, given in references.given.items()):
        references.given.update(others)
        return lacks("Keys and values have different passwords. cdcd has one login, and takes the first.")
    return Verdict(
        Kind.SAME,
        f"registry.user and registry.password; the password is {reference}: set this variable for cdcd.",
        {"registry.user": references.replace(user, "registry.user"), "registry.password": reference},
    )


def _defaults(options: Mapping[str, str]) -> Iterator[tuple[Option, Finding]]:
    """What Debezium and Connect take for options that are not given."""
    for option in OPTIONS:
        if option.name in options or option.default is None or not _counts(option.name, options):
            continue
        yield (
            option,
            Finding(option.name, option.default, is_default=True, verdict=option.rule(option.default)),
        )


def _counts(name: str, options: Mapping[str, str]) -> bool:
    """Whether the default of an option has an effect, beside the others that are given."""
    part, _, rest = name.partition(".converter.")
    if rest in _OF_JSON:
        return "JsonConverter" in options.get(f"{part}.converter", "")
    if not counts(name, options):
        return False
    return name != "flush.lsn.source" or not options.get("lsn.flush.mode")


def _unknown(name: str) -> Verdict:
    where = (
        "the Java producer"
        if name.startswith(OVERRIDE)
        else "Debezium's PostgreSQL connector and Kafka Connect"
    )
    return Verdict(
        Kind.UNKNOWN,
        f"The tables of cdcd's for {where} do not have it. Find out what it does before you go on.",
    )

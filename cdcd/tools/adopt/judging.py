"""Goes through the configuration of a connector: a finding for each option, also for those that nobody set."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cdcd.config.masking import is_secret_name, mask_text
from cdcd.tools.adopt.column_options import of_columns
from cdcd.tools.adopt.effects import has_effect, not_flattened, of_converter, of_heartbeat
from cdcd.tools.adopt.logins import JAAS, USER_INFO, judge_login, judge_secret, judge_user_info
from cdcd.tools.adopt.options import OPTIONS, PRODUCER, Option
from cdcd.tools.adopt.reach import Known
from cdcd.tools.adopt.references import References, has_placeholder
from cdcd.tools.adopt.transforms import Judged, judge_transforms, of_option
from cdcd.tools.adopt.verdicts import Kind, Verdict, lacks

OVERRIDE: Final = "producer.override."
"""What the names of a connector's producer properties begin with."""

WORKER_PRODUCER: Final = "producer."
"""What they begin with in a worker's properties."""

_FROM_WORKER: Final = ("key.converter", "value.converter", "header.converter", "topic.creation.enable")
"""A worker's properties that hold for connectors without their own."""

_SHOWN_MAX: Final = 60


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
    beside = of_heartbeat(finding.name, options, columns)
    return replace(finding, verdict=of_converter(finding.name, options, beside))


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
            why = "cdcd has one setting for keys and values, and uses the setting of the values."
            finding = replace(finding, verdict=lacks(why))  # noqa: PLW2901
        if keys.get("format.key") == "avro" and "avro" not in (
            values.get("format.value"),
            values.get("cloudevents.data"),
        ):
            why = "cdcd writes keys in Avro only if the values or data are in Avro too. The key is JSON."
            finding = replace(finding, verdict=lacks(why))  # noqa: PLW2901
        if keys.get("format.key") == "protobuf" and values.get("format.value") != "protobuf":
            why = "cdcd writes keys in Protobuf only if the values are in Protobuf too. The key is JSON."
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
    if name.endswith(JAAS):
        return judge_login(name, value, references)
    if name.endswith(USER_INFO):
        return judge_user_info(value, references)
    if option.is_secret:
        return judge_secret(option, name, value, references)
    replaced = references.replace(value, name)
    try:
        return option.judge(name, replaced)
    except ValueError as error:
        if has_placeholder(value):
            return Verdict(
                Kind.UNKNOWN,
                "A config provider of the worker has its value. Write the value, and run this again.",
            )
        return Verdict(Kind.UNKNOWN, f"Debezium's manual does not have this value: it {error}.")


def _defaults(options: Mapping[str, str]) -> Iterator[tuple[Option, Finding]]:
    """What Debezium and Connect take for options that are not given."""
    for option in OPTIONS:
        if option.name in options or option.default is None or not has_effect(option.name, options):
            continue
        yield (
            option,
            Finding(option.name, option.default, is_default=True, verdict=option.rule(option.default)),
        )


def _unknown(name: str) -> Verdict:
    where = (
        "the Java producer"
        if name.startswith(OVERRIDE)
        else "Debezium's PostgreSQL connector and Kafka Connect"
    )
    return Verdict(
        Kind.UNKNOWN,
        f"The tables of cdcd's for {where} do not have it. Find out what this option does before you continue.",
    )

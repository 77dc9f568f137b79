"""Options of Debezium's heartbeats, which are cdcd's `heartbeat` and `topics.heartbeat`.

The names and defaults are those of Debezium 3.7.0. Its topic is `topic.heartbeat.name` or, without that,
`<topic.heartbeat.prefix>.<topic.prefix>` (AbstractTopicNamingStrategy).
"""

from collections.abc import Mapping
from typing import Final

from cdcd.config.sections.heartbeat import INTERVAL_S_MAX, INTERVAL_S_MIN
from cdcd.tools.adopt.references import has_placeholder
from cdcd.tools.adopt.verdicts import (
    Kind,
    Option,
    Rule,
    Verdict,
    by_value,
    differs,
    lacks,
    only,
    same,
    seconds,
)

INTERVAL: Final = "heartbeat.interval.ms"
PREFIX: Final = "topic.heartbeat.prefix"
NAME: Final = "topic.heartbeat.name"
QUERY: Final = "heartbeat.action.query"

_USUAL: Final = "__debezium-heartbeat"
_OFF: Final = ("", "0")


def _interval(value: str) -> Verdict:
    given = seconds(value)
    assert isinstance(given, int | float)
    if given <= 0:
        return same("heartbeat.interval_s. At 0 there are no heartbeats.", heartbeat__interval_s=0)
    taken = min(max(given, INTERVAL_S_MIN), INTERVAL_S_MAX)
    why = "heartbeat.interval_s. The header cdcd.watermark of a heartbeat has the LSN."
    if taken != given:
        return differs(f"{why} The interval is the nearest one that cdcd takes.", heartbeat__interval_s=taken)
    return same(why, heartbeat__interval_s=given)


def _query(value: str) -> Verdict:
    if not value:
        return same("Nothing is asked for.")
    statement = value.rstrip("; \t\r\n")
    if ";" in statement:
        return lacks(
            "cdcd runs one statement. Put the statements into a function and set heartbeat.action_query to call it, "
            "as SELECT public.beat()."
        )
    return differs(
        "heartbeat.action_query. search_path is empty when it runs, so write tables and functions with their schema. "
        "`cdcd check` says whether the server takes it.",
        heartbeat__action_query=statement,
    )


def _full_name(value: str) -> Verdict:
    if not value:
        return same("Nothing is asked for.")
    return differs(
        "topics.heartbeat. The topic may have heartbeats of other connectors, too: the key tells whose they are.",
        topics__heartbeat=value,
    )


_prefix: Final[Rule] = only(
    _USUAL,
    "topics.heartbeat is __debezium-heartbeat.<prefix>.",
    differs("Set topics.heartbeat to this, a point and the prefix."),
)

HEARTBEAT: Final = (
    Option(INTERVAL, "0", _interval),
    Option(QUERY, None, _query),
    Option(
        "heartbeat.topics.prefix",
        _USUAL,
        by_value(
            {_USUAL: same("topic.heartbeat.prefix names the topic.")},
            differs(
                "Debezium 3.7 reads it and names the topic by topic.heartbeat.prefix. If the connector is older and "
                "writes to a topic by this prefix, set topics.heartbeat to it, a point and the prefix."
            ),
        ),
    ),
)

HEARTBEAT_TOPIC: Final = (Option(PREFIX, _USUAL, _prefix), Option(NAME, None, _full_name))


def of_heartbeat(name: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on an option of heartbeats beside the connector's other options."""
    if name not in {QUERY, PREFIX, NAME} or not options.get(name, "").strip():
        return found
    if options.get(INTERVAL, "0").strip() in _OFF:
        return Verdict(Kind.IRRELEVANT, f"Without {INTERVAL} there are no heartbeats.")
    if name != PREFIX:
        return found
    if options.get(NAME, "").strip():
        return Verdict(Kind.IRRELEVANT, f"{NAME} names the topic.")
    prefix, begins = options.get("topic.prefix", "").strip(), options.get(PREFIX, _USUAL).strip()
    if begins == _USUAL or has_placeholder(prefix) or has_placeholder(begins):
        return found
    return same("topics.heartbeat is this, a point and the prefix.", topics__heartbeat=f"{begins}.{prefix}")

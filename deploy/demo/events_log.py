"""Exactly-once and in order, shown in the topics alone by the workload's `events_log` (workload.py: what is in it)."""

import base64
from collections import defaultdict
from typing import Any, Final

from deploy.demo.history import Event, History, Violations

TABLE: Final = "events_log"


def examine_log(history: History, violations: Violations) -> int:
    """Hold what the topics have against what `events_log` says of it; returns its transactions."""
    sessions: dict[str, int] = defaultdict(int)
    alone: dict[str, int] = {}
    expected_alone: dict[str, Event] = {}
    logged = 0
    for events in history.transactions():
        entries = [event for event in events if event.table == TABLE and event.op != "t"]
        messages = [event for event in events if event.op == "m"]
        if not entries:
            for event in events:
                if event.op != "m" or event.xid is not None:
                    violations.add("a transaction without a row in events_log", str(event))
                else:
                    _alone(event, alone, violations)
            continue
        logged += 1
        if len(entries) != 1 or entries[0].op != "c":
            violations.add("a transaction with other than one row in events_log", str(entries[0]))
            continue
        row: dict[str, Any] = entries[0].envelope()["after"]
        _in_turn(row, entries[0], sessions, violations)
        _counted(row, events, messages, violations)
        for content in row["standalone"]:
            expected_alone[content] = entries[0]
    for content, event in expected_alone.items():
        lsn = alone.get(content)
        if lsn is None:
            violations.add("a non-transactional message is missing", f"{content!r} before {event}")
        elif lsn >= event.commit_lsn:
            violations.add("a non-transactional message after its session's commit", f"{content!r} {event}")
    return logged


def _alone(event: Event, seen: dict[str, int], violations: Violations) -> None:
    content = _content(event)
    if content in seen:
        violations.add("a non-transactional message twice", f"{content!r} {event}")
    seen[content] = event.commit_lsn


def _in_turn(row: dict[str, Any], event: Event, sessions: dict[str, int], violations: Violations) -> None:
    session, sequence = row["session"], row["sequence"]
    if row["doomed"]:
        violations.add("rolled back, and yet here", str(event))
    elif sequence != sessions[session] + 1:
        violations.add(
            "a session's transactions out of turn",
            f"{session}: {sequence} after {sessions[session]}: {event}",
        )
    sessions[session] = max(sessions[session], sequence)


def _counted(row: dict[str, Any], events: list[Event], messages: list[Event], violations: Violations) -> None:
    serials = len({event.serial for event in events})
    if row["changes"] is not None and serials != row["changes"] + row["messages"] + 1:
        wanted = row["changes"] + row["messages"] + 1
        violations.add(
            "a transaction with too few or too many events", f"{serials}, not {wanted}: {events[0]}"
        )
    start = f"{row['session']} {row['sequence']} {row['attempt']}"
    contents = [_content(event) for event in messages]
    if contents != [f"{start} {number}" for number in range(row["messages"])]:
        violations.add("other messages than were sent", f"{contents} in {events[0]}")


def _content(event: Event) -> str:
    return base64.b64decode(event.envelope()["message"]["content"]).decode()

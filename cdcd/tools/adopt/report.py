"""What `cdcd adopt` says: for people, and as an object for programs. No value of a secret is in either."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cdcd.adapters.postgres.slot import creation_by_sql
from cdcd.config.masking import mask_text
from cdcd.core.pasted import cdcd, shell
from cdcd.core.protocol.lsn import Lsn
from cdcd.telemetry.terminal_text import number, plain, wrapped
from cdcd.tools.adopt.adoption import Adoption
from cdcd.tools.adopt.judging import OptionFinding
from cdcd.tools.adopt.takeover import TakeoverOutcome
from cdcd.tools.adopt.verdicts import VerdictKind
from cdcd.tools.adopt.written_events import POSITIONS, Twice

_WHOLE: Final = (VerdictKind.IMPOSSIBLE, VerdictKind.UNKNOWN, VerdictKind.DIFFERENT)
"""Kinds whose findings are shown one by one. The others are named, unless all are asked for."""

_FOLDED: Final = (VerdictKind.SAME, VerdictKind.IRRELEVANT)


def lines(adoption: Adoption, width: int, *, shows_all: bool) -> Iterator[str]:
    """The findings, worst first."""
    counts = [
        (kind, len([one for one in adoption.of(kind) if _is_shown(one)])) for kind in (*_FOLDED[:1], *_WHOLE)
    ]
    yield f"{adoption.config.name}: {', '.join(f'{count} {kind}' for kind, count in counts)}"
    for kind in _WHOLE + (_FOLDED if shows_all else ()):
        for finding in adoption.of(kind):
            if shows_all or _is_shown(finding):
                yield ""
                yield from _paragraph(f"{kind.upper()} {_title(finding)}", width)
                yield from wrapped(finding.verdict.why, "", width)
    for kind in () if shows_all else _FOLDED:
        names = [finding.name for finding in adoption.of(kind) if not finding.is_default]
        if names:
            yield ""
            yield from _paragraph(f"{kind.upper()} {', '.join(names)}", width)
    if adoption.not_asked is not None:
        yield ""
        yield "NOT COMPARED WITH THE DATABASE"
        yield from wrapped(adoption.not_asked.message, adoption.not_asked.hint, width)
    if adoption.references.variables:
        yield ""
        yield "cdcd needs these variables of the environment:"
        for name, meaning in adoption.references.variables.items():
            yield from _paragraph(f"  {name}: {meaning}", width, indent="    ")


def endings(
    adoption: Adoption, outcome: TakeoverOutcome | None, width: int, *, file: str, is_url: bool, refused: bool
) -> Iterator[str]:
    """What was taken over, or what is to be done.

    Args:
        is_url: the connector was named by its URL, so that it can be taken over.
        refused: a takeover was asked for. Without an outcome, it was refused.
    """
    if outcome is not None:
        yield ""
        yield "TAKEN OVER"
        for sentence in sentences(outcome):
            yield from wrapped(sentence, "", width)
        yield f"Start: {cdcd('run', '--config', file)}"
    elif refused:
        yield ""
        yield "NOT TAKEN OVER"
        names = " ".join([shell("--accept", name) for name in adoption.blocking])
        yield from wrapped(
            "Options are impossible or unknown, and nothing was touched. If you do not need them, add:",
            names,
            width,
        )
    elif adoption.blocking:
        yield from _decisions(adoption, file, is_url=is_url)
    elif is_url:
        yield "Next: run the same command with --takeover, while the connector runs."
    else:
        yield from _by_hand(adoption, file)


def _decisions(adoption: Adoption, file: str, *, is_url: bool) -> Iterator[str]:
    names = adoption.blocking
    yield (
        f"Next: decide about {number(len(names), 'option')} that {'is' if len(names) == 1 else 'are'} impossible or "
        f"unknown: change the connector, or complete {file}."
    )
    if is_url:
        accepted = " ".join([shell("--accept", name) for name in names])
        yield f"Then run the same command with --takeover {accepted}, while the connector runs."
    else:
        yield f"Then stop the connector; {cdcd('check', '--config', file)}; {cdcd('run', '--config', file)}"


def _by_hand(adoption: Adoption, file: str) -> Iterator[str]:
    narrowed, slot = adoption.narrowing, adoption.config.postgres.slot
    if slot != adoption.connector_slot:
        yield "Next, while the connector runs, create a slot for cdcd, and note its position:"
        if narrowed is not None:
            yield f"  {narrowed.statement};"
        yield f"  {creation_by_sql(slot)}"
        yield f"Stop the connector when slot {adoption.connector_slot} is past that position:"
        yield "  SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots;"
    elif narrowed is not None:
        yield "Next, while the connector runs, create the publication, and note the position:"
        yield f"  {narrowed.statement};"
        yield "  SELECT pg_current_wal_lsn();"
        yield f"Stop the connector when slot {slot} is past that position:"
        yield "  SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots;"
    yield f"Next: stop the connector; {cdcd('check', '--config', file)}; {cdcd('run', '--config', file)}"


def _is_shown(finding: OptionFinding) -> bool:
    """A default is told where it makes a difference."""
    return not finding.is_default or finding.verdict.kind in _WHOLE


def _title(finding: OptionFinding) -> str:
    value = f" = {plain(finding.value)}" if finding.value else ""
    return f"{plain(finding.name)}{value}{' (not set)' if finding.is_default else ''}"


def _paragraph(text: str, width: int, indent: str = "    ") -> Iterator[str]:
    yield from textwrap.wrap(
        plain(text), max(width, 40), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def sentences(outcome: TakeoverOutcome) -> Iterator[str]:
    """The connector is stopped: what comes twice, and what may not come at all."""
    positions = ", ".join(f"{name} {lsn}" for name, lsn in _positions(outcome.offset).items())
    yield f"The connector is stopped. Its offset: {positions or 'none'}."
    yield (
        f"Slot {outcome.slot} stands at {outcome.confirmed}. cdcd gets every transaction that ends after it; the "
        f"server has written up to {outcome.written_up_to}."
    )
    yield from _twice(outcome.twice)
    yield _missing(outcome, has_offset=bool(positions))
    if outcome.left_slot is not None:
        drop = f"SELECT pg_drop_replication_slot('{outcome.left_slot}');"
        yield f"The connector's slot {outcome.left_slot} keeps WAL. If you do not go back, drop it: {drop}"
    if outcome.unfinished_tables:
        yield (
            "The connector was reading tables by an incremental snapshot, which ends with it. Read them by `cdcd "
            "snapshot start --table`."
        )


def _missing(outcome: TakeoverOutcome, *, has_offset: bool) -> str:
    gap = outcome.gap
    if not has_offset:
        return (
            "The connector has stored no position, so `cdcd adopt` cannot check whether somebody else has moved the "
            "slot."
        )
    if gap is None:
        return "Nothing is missing: the slot is not past the connector's offset."
    if outcome.driver_confirms:
        return (
            f"The slot is past the connector's offset {gap.after}, because its driver confirms WAL without changes "
            "(lsn.flush.mode). Nothing is missing, unless somebody else has moved the slot too."
        )
    return (
        f"Not delivered: transactions that committed after {gap.after} and up to {gap.up_to}, because the slot was "
        "moved past them."
    )


def _twice(twice: Twice) -> Iterator[str]:
    if not twice.is_readable:
        yield (
            "The topics have records that are not Debezium's JSON, so repeated events cannot be counted: at most "
            f"{number(twice.pending, 'event')}, which the slot holds."
        )
    elif twice.first is None:
        yield "Nothing comes twice."
    else:
        least = "" if twice.is_complete else "at least "
        yield (
            f"Twice: {least}{number(twice.events, 'event')} of {number(twice.transactions, 'transaction')}, which "
            f"end from {twice.first} to {twice.last}."
        )
        if twice.partly is not None:
            yield (
                f"The transaction that ends at {twice.partly} is in the topics in part. The whole transaction comes "
                "again."
            )
    if not twice.is_complete:
        yield "The slot holds more than the command has read, so more events may come twice."


def _positions(offset: Mapping[str, Any]) -> dict[str, str]:
    found = {name: str(Lsn(int(offset[name]))) for name in POSITIONS if offset.get(name) is not None}
    if offset.get("txId") is not None:
        found["txId"] = str(offset["txId"])
    return found


def as_object(
    adoption: Adoption, exit_code: int, outcome: TakeoverOutcome | None, *, file: str, written: bool
) -> dict[str, Any]:
    """All of it, for programs."""
    narrowed, not_asked = adoption.narrowing, adoption.not_asked
    return {
        "exit_code": exit_code,
        "pipeline": adoption.config.name,
        "file": file,
        "written": written,
        "options": [
            {
                "option": finding.name,
                "value": finding.value,
                "is_default": finding.is_default,
                "outcome": finding.verdict.kind.value,
                "why": finding.verdict.why,
                "keys": sorted(finding.verdict.keys),
            }
            for finding in adoption.findings
        ],
        "variables": dict(adoption.references.variables),
        "missing_secrets": adoption.missing,
        "publication": None
        if narrowed is None
        else {"name": narrowed.name, "left_out": list(narrowed.left_out), "statement": narrowed.statement},
        "not_compared": None if not_asked is None else {"message": not_asked.message, "hint": not_asked.hint},
        "takeover": None if outcome is None else _takeover_object(outcome),
    }


def _takeover_object(outcome: TakeoverOutcome) -> dict[str, Any]:
    twice, gap = outcome.twice, outcome.gap
    return {
        "slot": outcome.slot,
        "confirmed": str(outcome.confirmed),
        "written_up_to": str(outcome.written_up_to),
        "offset": _positions(outcome.offset),
        "twice": {
            "events": twice.events,
            "transactions": twice.transactions,
            "first": _text(twice.first),
            "last": _text(twice.last),
            "partly": _text(twice.partly),
            "pending": twice.pending,
            "is_complete": twice.is_complete,
            "is_readable": twice.is_readable,
        },
        "gap": None if gap is None else {"after": str(gap.after), "up_to": str(gap.up_to)},
        "driver_confirms": outcome.driver_confirms,
        "unfinished_tables": outcome.unfinished_tables,
        "left_slot": outcome.left_slot,
    }


def _text(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)


def comments(adoption: Adoption, source: str) -> Sequence[str]:
    """Lines for the head of the written file."""
    found = [
        f"Written by `cdcd adopt` from {mask_text(source)}. `cdcd config --reference` shows every other key."
    ]
    if adoption.references.variables:
        found.append("Variables of the environment that it needs:")
        found += [f"  {name}: {plain(meaning)}" for name, meaning in adoption.references.variables.items()]
    return found

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cdcd.adapters.postgres.slot import SlotState
from cdcd.core.errors import TransientError
from cdcd.tools.handover import prepare
from tests.unit.tools.operations.test_pipeline_status import SLOT, UNREAD

LATE = TransientError("late")


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "POLL_S", 0)
    monkeypatch.setattr(prepare, "UNREAD_S", 0)


def waited(
    monkeypatch: pytest.MonkeyPatch, states: list[SlotState | None], wait_s: float = 120.0
) -> list[str]:
    """What is said while the slot is like this, from look to look."""
    looks: Iterator[SlotState | None] = iter(states)

    async def look(_sql: Any, _name: str) -> SlotState | None:
        return next(looks)

    monkeypatch.setattr(prepare, "read_slot", look)
    said: list[str] = []
    sql: Any = None
    asyncio.run(
        prepare.await_confirmed(sql, "cdcd_shop", 0x2000, wait_s, LATE, lambda: said.append("unread"))
    )
    assert next(looks, None) is None, "it ended too early"
    return said


def test_it_waits_until_the_slot_is_confirmed(monkeypatch: pytest.MonkeyPatch):
    assert waited(monkeypatch, [SLOT, SLOT, replace(SLOT, confirmed_flush_lsn=0x2000)]) == []


def test_a_slot_that_nobody_reads_is_said_once(monkeypatch: pytest.MonkeyPatch):
    done = replace(UNREAD, confirmed_flush_lsn=0x2001)
    assert waited(monkeypatch, [UNREAD, None, UNREAD, done]) == ["unread"]


def test_a_wait_that_takes_too_long_ends_with_its_error(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(TransientError, match="late"):
        waited(monkeypatch, [SLOT, SLOT], wait_s=-1)

import sys
from types import FrameType
from typing import Any

import pytest

from cdcd.build import is_compiled
from cdcd.core.engine.plans import OpenChunk, TablePlan, WaitingRows
from cdcd.core.snapshot.reading import Rows, Visibility
from cdcd.core.snapshot.table_task import TableTask

PLAN = TablePlan(TableTask("public.t", 1), 0.0)


def wait(waiting: WaitingRows, after: int, size: int = 10) -> OpenChunk:
    each = OpenChunk(PLAN, None, [], Visibility(1, 1))
    waiting.add(each, Rows([b"1"], size, Visibility(1, 1), after))
    return each


def test_rows_are_due_once_the_stream_is_at_their_place_and_the_nearest_first():
    waiting = WaitingRows()
    later, former = wait(waiting, 700), wait(waiting, 500)
    assert waiting.due(499) == []
    assert waiting.due(500) == [former]
    assert waiting.due(1000) == [later]
    assert waiting.due(1000) == []


def test_rows_whose_plan_is_over_are_never_due_and_their_bytes_are_free():
    waiting = WaitingRows()
    over, other = wait(waiting, 500, 10), wait(waiting, 500, 20)
    waiting.remove(over)
    assert waiting.bytes == 20
    assert waiting.due(500) == [other]
    waiting.remove(other)
    assert waiting.bytes == 0


@pytest.mark.skipif(is_compiled(), reason="no bytecode runs")
def test_a_transaction_looks_at_no_rows_that_have_to_wait():
    few, many = WaitingRows(), WaitingRows()
    wait(few, 500)
    for place in range(500, 2500):
        wait(many, place)
    assert steps(few, 499) == steps(many, 499)


def steps(waiting: WaitingRows, position: int) -> int:
    """Lines that the interpreter ran to say what is due. What else runs meanwhile, as finalizers, does not count."""
    counted = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal counted
        if frame.f_globals.get("__name__") != WaitingRows.__module__:
            return None
        counted += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        waiting.due(position)
    finally:
        sys.settrace(before)
    return counted

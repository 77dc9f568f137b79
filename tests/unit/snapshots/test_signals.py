import json

import pytest

from cdcd.snapshots.progress import Progress, TableTask
from cdcd.snapshots.signals import Signal


def test_a_request_is_read_back_as_it_was_written():
    signal = Signal("start", ("public.a", "b.c"), "id > 5", "me", "shop")
    assert Signal.decode(signal.encode().encode()) == signal
    assert Signal.decode(b'{"action": "pause"}') == Signal("pause")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "action must be one of start, pause, resume, cancel"),
        (b'{"action": "stop"}', "action must be"),
        (b'{"action": ["start"]}', "action must be"),
        (b'{"action": "start"}', "start needs tables"),
        (b'{"action": "start", "tables": "public.a"}', "tables must be a list"),
        (b'{"action": "start", "tables": ["a"]}', "tables must be a list"),
        (b'{"action": "start", "tables": [5]}', "tables must be a list"),
        (b'{"action": "pause", "where": "x"}', "pause takes no where"),
        (b'{"action": "pause", "id": 5}', "id must be a text"),
        (b'{"action": "pause", "table": "a.b"}', "unknown keys: table"),
        (json.dumps({"action": "start", "tables": ["a.b"], "where": "x" * 20_000}).encode(), "where must be"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(content: bytes, says: str):
    with pytest.raises(ValueError, match=says):
        Signal.decode(content)


def test_requests_change_what_is_to_be_read():
    progress = Signal("start", ("a.b", "a.c"), request="me").apply(Progress())
    assert progress.tasks == (TableTask("a.b", request="me"), TableTask("a.c", request="me"))
    assert Signal("start", ("a.b",)).apply(progress) == progress
    assert Signal("pause").apply(progress).paused
    assert not Signal("resume").apply(Signal("pause").apply(progress)).paused
    one = Signal("cancel", ("a.b",)).apply(progress)
    assert [task.name for task in one.tasks] == ["a.c"]
    assert one.outcomes[0].error == "cancelled"
    assert Signal("cancel").apply(progress).is_done

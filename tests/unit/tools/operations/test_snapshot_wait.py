from dataclasses import replace

import pytest

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.snapshot.outcomes import CANCELLED, Requested
from cdcd.core.snapshot.progress import Progress
from cdcd.core.transactions.position import Position
from cdcd.tools.operations.snapshot_wait import RequestVerdict, judge, outcome

SENT = Lsn(100)
OPEN = Requested("me", 2, 1, asked=10)
DONE = Requested("me", 2, 2, rows=9, asked=10, ended=15)


def checkpoint(end_lsn: int, *requests: Requested) -> Checkpoint:
    return Checkpoint("7", 1, "", Position(end_lsn, end_lsn), 0, snapshot=Progress(requests=requests))


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (None, "unheard"),
        (checkpoint(100), "unheard"),
        # An earlier request of this name has ended.
        (checkpoint(100, DONE), "unheard"),
        (checkpoint(101), "forgotten"),
        (replace(checkpoint(101), snapshot=None), "forgotten"),
        (checkpoint(101, replace(DONE, id="other")), "forgotten"),
        (checkpoint(101, OPEN), "open"),
        (checkpoint(101, DONE), "ended"),
        (checkpoint(101, Requested("me", ended=9, error="too much", code=2)), "ended"),
    ],
)
def test_a_request_has_ended_if_a_checkpoint_behind_it_says_so(found: Checkpoint | None, kind: str):
    assert judge(found, "me", SENT).kind == kind


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (DONE, 0, "complete: 2 tables, 9 rows in 5.0 s"),
        (
            replace(DONE, complete=1, failed=1, error="denied", code=3),
            3,
            "not complete: 1 of 2 tables",
        ),
        (replace(DONE, complete=0, failed=2, error="cancelled", code=CANCELLED), 9, "cancelled"),
        (Requested("me", ended=9, error="too much", code=2), 2, "refused: too much"),
        (None, 9, "The outcome is no longer known"),
    ],
)
def test_the_exit_code_says_what_kind_of_end_it_was(request_: Requested | None, code: int, text: str):
    got, said = outcome(RequestVerdict("ended", request_))
    assert (got, text in said) == (code, True), said

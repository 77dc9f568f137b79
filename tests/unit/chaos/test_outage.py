"""The judge of `tests.chaos.outage` sees what is missing, twice, or in another place."""

import pytest

from tests.chaos import outage
from tests.chaos.outage import Found


@pytest.fixture(autouse=True)
def _truncated_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "KEPT", 2)


def row(number: int) -> bytes:
    return b'{"before":null,"after":{"id":%d,"body":"x"},"source":{},"op":"c","ts_ms":1}' % number


TRUNCATE = b'{"source":{},"op":"t","ts_ms":1}'


def judged(*values: bytes) -> Found:
    found = Found()
    found.take(values)
    return found


def test_rows_in_order_with_truncates_between_them_are_right():
    found = judged(row(1), row(2), TRUNCATE, row(3), row(4), TRUNCATE, row(5))
    assert (found.rows, found.truncates, found.wrong) == (5, 2, [])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param((row(1), row(3)), "row 3 came behind row 1", id="missing"),
        pytest.param((row(1), row(1)), "row 1 came behind row 1", id="twice"),
        pytest.param((row(2), row(1)), "row 1 came behind row 2", id="another order"),
        pytest.param((row(1), TRUNCATE, row(2)), "truncate 1 came behind row 1", id="truncate too early"),
        pytest.param(
            (row(1), row(2), row(3), TRUNCATE), "truncate 1 came behind row 3", id="truncate too late"
        ),
        pytest.param((row(1), b'{"op":"x"}'), "row -1 came behind row 1", id="no row"),
    ],
)
def test_what_is_wrong_is_said(values: tuple[bytes, ...], said: str):
    assert said in judged(*values).wrong

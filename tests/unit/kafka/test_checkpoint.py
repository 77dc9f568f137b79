"""Which of the checkpoint topic's records counts."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from cdcd.errors import PositionError
from cdcd.kafka.checkpoint import _latest
from cdcd.transactions.position import Checkpoint, Position

FIRST = Checkpoint("7001", 1, "publication=shop", Position(100, 110), 110)
SECOND = replace(FIRST, position=Position(200, 210))
LATER = replace(FIRST, position=Position(150, 160), epoch=1)


@dataclass(frozen=True)
class Record:
    """A message of librdkafka's, as far as it is looked at."""

    written: Checkpoint | bytes | None

    def value(self) -> bytes | None:
        return self.written.encode() if isinstance(self.written, Checkpoint) else self.written

    def offset(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("written", "latest"),
    [
        ([FIRST, SECOND], SECOND),
        ([SECOND, FIRST], FIRST),
        ([FIRST, None], None),
        ([None, FIRST], FIRST),
        # A writer that was frozen wrote once more, after its successor had begun.
        ([FIRST, LATER, SECOND], LATER),
        (
            [LATER, SECOND, replace(LATER, position=Position(300, 310))],
            replace(LATER, position=Position(300, 310)),
        ),
    ],
)
def test_the_last_one_of_the_latest_epoch_counts(
    written: list[Checkpoint | None], latest: Checkpoint | None
) -> None:
    records: Any = [Record(each) for each in written]
    assert _latest("shop.checkpoint", records) == latest


@pytest.mark.parametrize("written", [[LATER, b"{"], [LATER, b"{", FIRST]], ids=["last", "before a stale one"])
def test_one_that_cannot_be_read_counts(written: list[Checkpoint | bytes]) -> None:
    records: Any = [Record(each) for each in written]
    with pytest.raises(PositionError, match=r"shop\.checkpoint\[0\]@7"):
        _latest("shop.checkpoint", records)


@pytest.mark.parametrize("mended", [LATER, None], ids=["a good one", "a tombstone"])
def test_until_another_is_in_its_place(mended: Checkpoint | None) -> None:
    records: Any = [Record(b"{"), Record(mended)]
    assert _latest("shop.checkpoint", records) == mended

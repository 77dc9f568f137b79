"""Which of the checkpoint topic's records counts."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from cdcd.kafka.checkpoint import _latest
from cdcd.transactions.position import Checkpoint, Position

FIRST = Checkpoint("7001", 1, "publication=shop", Position(100, 110), 110)
SECOND = replace(FIRST, position=Position(200, 210))
LATER = replace(FIRST, position=Position(150, 160), epoch=1)


@dataclass(frozen=True)
class Record:
    """A message of librdkafka's, as far as it is looked at."""

    written: Checkpoint | None

    def value(self) -> bytes | None:
        return None if self.written is None else self.written.encode()

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

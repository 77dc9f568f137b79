"""Random values of every kind that a column can hold, the same for the same seed."""

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

KEYS: Final = 60
"""Keys that all sessions share; few enough that rows are changed often, by several sessions."""

WORDS: Final = (
    "", "a", "Zoë", "O'Brien", 'say "hi"', "back\\slash", "tab\there", "line\nbreak", "日本語", "🐘🐘", "NULL", "{1,2}",
    "__debezium_unavailable_value?", " padded ", "null", "\\x00ff", "ß" * 40, "\u2028", "\x01\x1f\x7f", "e\u0301",
)  # fmt: skip


class Dice:
    """Random values, the same for the same seed. `own` narrows the keys to ones that no other session uses."""

    def __init__(self, seed: str, session: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - repeatable is what it has to be
        self._session = session
        self.own = False

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def below(self, limit: int) -> int:
        return self.random.randrange(limit)

    def key(self) -> int:
        number = self.random.randrange(1, KEYS + 1)
        return number + 1000 * (self._session + 1) if self.own else number

    def fresh(self) -> int:
        """A number that nobody else draws, but for luck."""
        return self.random.randrange(1_000_000, 2_000_000_000)

    def word(self) -> str | None:
        if self.chance(0.1):
            return None
        return self.random.choice(WORDS) + str(self.random.randrange(10))

    def text(self) -> str:
        return self.word() or "none"

    def big(self) -> str | None:
        """Mostly large enough to be stored out of line (TOAST), where an update leaves it alone."""
        if self.chance(0.15):
            return self.word()
        return self.text() * 3 + self.random.choice("xyzß") * self.random.randrange(2100, 5000)

    def bytes(self) -> bytes | None:
        return None if self.chance(0.2) else self.random.randbytes(self.random.choice((0, 1, 7, 60, 3000)))

    def number(self) -> Decimal | None:
        if self.chance(0.1):
            return None
        return Decimal(self.random.randrange(-(10**9), 10**9)).scaleb(-2)

    def any_number(self) -> str | None:
        return self.random.choice(
            (None, "NaN", "0", "-0.000", "1e40", "123456789012345678901234567890.5", "7", "-1.10")
        )

    def ratio(self) -> str | None:
        return self.random.choice(
            (
                None,
                "NaN",
                "Infinity",
                "-Infinity",
                "0",
                "-0",
                "0.1",
                "1e-300",
                "1.7976931348623157e308",
                "3.3333333333333335",
            )
        )

    def day(self) -> str | None:
        if self.chance(0.1):
            return self.random.choice(
                (None, "infinity", "-infinity", "0044-03-15 BC", "12024-01-01", "1582-10-10")
            )
        return str(date(2024, 1, 1) + timedelta(days=self.random.randrange(-400, 1200)))

    def moment(self) -> str | None:
        if self.chance(0.1):
            return self.random.choice(
                (None, "infinity", "-infinity", "0044-03-15 12:00:00 BC", "20240-02-29 23:59:59.999999")
            )
        moment = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=self.random.randrange(-(10**9), 10**9))
        return str(moment.replace(microsecond=self.random.choice((0, 1, 500000, 999999)), tzinfo=None))

    def mood(self) -> str | None:
        return self.random.choice((None, "sad", "Sad", "ok", "hapπ"))

    def array(self, element: Callable[[], object]) -> list[object] | None:
        return None if self.chance(0.1) else [element() for _ in range(self.random.randrange(4))]

    def doc(self) -> str:
        words = (
            f'"{self.random.choice(("a", "ß", "é", "🐘"))}{n}": {self.random.randrange(100)}'
            for n in range(3)
        )
        return "{" + ", ".join(words) + "}"

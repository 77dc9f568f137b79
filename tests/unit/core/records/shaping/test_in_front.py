"""An encoder in front of another one passes on everything."""

from typing import Any

import pytest

from cdcd.build import is_compiled
from cdcd.core.records.encoder import Encoder
from cdcd.core.records.shaping.in_front import EncoderInFront

uncompiled = pytest.mark.skipif(is_compiled(), reason="a compiled class has compiled subclasses only")
METHODS = [name for name in vars(Encoder) if not name.startswith("_")]


def shapes_texts(inner: Any) -> EncoderInFront:
    """An encoder that shapes the frames that begin with x."""

    class ShapesTexts(EncoderInFront):
        def _shapes(self, item: Any, in_stream: bool) -> bool:
            return isinstance(item, bytes) and item.startswith(b"x")

        def _shape(self, frame: bytes, in_stream: bool, now_us: int, out: list[Any]) -> int:
            out.append(("shaped", frame, None, None))
            return len(frame)

    return ShapesTexts(inner)


class Runs:
    """An encoder that shows what it was given together."""

    serial = 0

    def encode_all(self, kept: list[Any], in_stream: bool, now_us: int, out: list[Any]) -> int:
        out.append(("run", *kept))
        return len(kept)

    def draft_all(self, frames: list[Any], relations: Any) -> list[Any]:
        return [tuple(frames)]


def test_every_method_of_an_encoder_is_there():
    assert METHODS
    assert set(METHODS) <= set(vars(EncoderInFront))


@uncompiled
def test_runs_of_other_events_stay_together_and_in_order():
    front = shapes_texts(Runs())
    out: list[Any] = []
    draft: Any = object()
    size = front.encode_all([b"a", draft, b"x1", b"x2", b"b"], False, 0, out)
    assert out == [
        ("run", b"a", draft),
        ("shaped", b"x1", None, None),
        ("shaped", b"x2", None, None),
        ("run", b"b"),
    ]
    assert size == 2 + 2 + 2 + 1


@uncompiled
def test_what_is_shaped_is_not_drafted():
    assert shapes_texts(Runs()).draft_all([b"a", b"b", b"x1", b"c"], {}) == [(b"a", b"b"), b"x1", (b"c",)]

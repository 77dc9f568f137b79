"""The result of a fold's statement, as the commits that the table has afterwards tell it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.core.errors import SinkError
from cdcd.mirror.base import commit
from cdcd.mirror.base.commit import Committing, Folded
from cdcd.mirror.base.formats import DeltaBase, IcebergBase, Version
from cdcd.mirror.base.part import Place
from cdcd.mirror.base.position import Carried, Node, Position, position_of

BOUND = 20
HAD = Position(10, 10, "form")
BEFORE = {"1": Node("", Carried("first", 10, 0, "", "form", 10))}
COMPACTED = {**BEFORE, "2": Node("1")}
"""An owner's compaction, whose commit carries no position."""

MINE = Carried("mine", BOUND, 10, "1", "form", BOUND)


def settled(monkeypatch: pytest.MonkeyPatch, format_: Any, pin: str, nodes: dict[str, Node]) -> Folded | None:
    """The result of the fold `MINE` in a table that has these commits now."""
    after = Version(pin, nodes, position_of(pin, nodes))
    monkeypatch.setattr(format_, "version", lambda *_: after)
    spark: Any = None
    place = Place("public.docs", "shop.public.docs", "lake.public.docs", "lake.cdcd.log")
    return Committing(spark, format_, place, BOUND).settled("1", HAD, MINE, changes=2, keys=1)


@pytest.mark.parametrize("format_", [DeltaBase(), IcebergBase()])
def test_a_fold_whose_commit_followed_the_pinned_version_is_done(
    monkeypatch: pytest.MonkeyPatch, format_: Any
) -> None:
    done = settled(monkeypatch, format_, "2", {**BEFORE, "2": Node("1", MINE)})
    assert done == Folded(BOUND, 2, 1, version="2")


@pytest.mark.parametrize("format_", [DeltaBase(), IcebergBase()])
def test_a_fold_whose_commit_followed_a_compaction_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, format_: Any
) -> None:
    assert settled(monkeypatch, format_, "3", {**COMPACTED, "3": Node("2", MINE)}) is None


def test_a_fold_that_changed_no_row_of_delta_behind_a_compaction_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Delta makes no commit for a fold that changes no row, so the newest position is from before the compaction."""
    assert settled(monkeypatch, DeltaBase(), "2", COMPACTED) is None


def test_a_version_of_iceberg_that_loses_the_position_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SinkError, match="does not carry its position") as raised:
        settled(monkeypatch, IcebergBase(), "2", COMPACTED)
    assert "Iceberg 1.12" in raised.value.hint


@pytest.mark.parametrize(
    ("nodes", "pin", "done"),
    [
        # The statement committed before it failed.
        ({**BEFORE, "2": Node("1", MINE)}, "2", True),
        # Another writer came first.
        (COMPACTED, "2", False),
        # Nobody committed.
        (BEFORE, "1", None),
    ],
)
def test_the_commits_tell_what_became_of_a_statement_that_failed(
    monkeypatch: pytest.MonkeyPatch, nodes: dict[str, Node], pin: str, done: bool | None
) -> None:
    @contextmanager
    def carrying(*_: Any) -> Iterator[str]:
        yield "lake.public.docs"

    def fail(_: str) -> None:
        raise RuntimeError("it failed")

    format_: Any = DeltaBase()
    monkeypatch.setattr(format_, "version", lambda *_: Version(pin, nodes, position_of(pin, nodes)))
    monkeypatch.setattr(format_, "carrying", carrying)
    monkeypatch.setattr(commit, "having", lambda *_: nullcontext())
    spark: Any = SimpleNamespace(sql=fail)
    place = Place("public.docs", "shop.public.docs", "lake.public.docs", "lake.cdcd.log")
    table = Committing(spark, format_, place, BOUND)
    if done is None:
        with pytest.raises(RuntimeError, match="it failed"):
            table.commit("1", MINE, str)
    else:
        assert table.commit("1", MINE, str) is done

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.oids import Oids
from cdcd.core.engine.checkpoint import AsideTable, Checkpoint, Seal, tables_sum
from cdcd.core.errors import CdcdError, ConfigError, PositionError
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.table_task import TableTask
from cdcd.core.transactions.position import Position
from cdcd.tools.handover.sealing import (
    Subscription,
    adopted,
    refuse_lower,
    refuse_other_numbers,
    refuse_same_oids,
    refuse_unfit,
    refuse_unsealable,
    seal_for,
    sealed,
    unsealed,
)

FORMER, NEW = "7001", "7002"
TABLES = {11: "public.t", 12: "public.u"}
KNOWN = Progress(known=Oids([1, 2], {1: "public.t", 2: "public.u"}), labels=5, event_no=9, vacated=(3,))
CHECKPOINT = Checkpoint(FORMER, 3, "stream", Position(90, 100), 100, epoch=2, snapshot=KNOWN)
SEAL = Seal(100, NEW, 500, "pg_16400", tables_sum(TABLES), "token")
SEALED = replace(CHECKPOINT, seal=SEAL)
FOLLOWS = Subscription("follow", "pg_16400", "follow", enabled=True)


def refused(call: Callable[[], Any], kind: type[CdcdError] = PositionError) -> str:
    with pytest.raises(kind) as error:
        call()
    assert error.value.hint
    return error.value.message


def test_a_checkpoint_is_sealed_where_it_was_seen_and_nowhere_else():
    made = sealed(CHECKPOINT, FORMER, 100, SEAL)
    assert made == replace(CHECKPOINT, seal=SEAL, epoch=3)
    assert "still active" in refused(lambda: sealed(CHECKPOINT, FORMER, 99, SEAL))
    inside = replace(CHECKPOINT, position=Position(100, 100, 4))
    assert "still active" in refused(lambda: sealed(inside, FORMER, 100, SEAL))


@pytest.mark.parametrize(
    ("checkpoint", "why"),
    [
        (None, "no checkpoint"),
        (SEALED, "sealed"),
        (
            replace(CHECKPOINT, system_identifier="7009"),
            "reads another server: its checkpoint is of system_identifier 7009",
        ),
        (replace(CHECKPOINT, snapshot=replace(KNOWN, waiting=Oids([1, 2]))), "2 are left"),
        (replace(CHECKPOINT, snapshot=KNOWN.add([TableTask("public.t", 1)])), "1 are left"),
        (replace(CHECKPOINT, tables=(AsideTable(1, 50, "size"),)), "1 tables are set aside"),
    ],
)
def test_what_can_not_be_sealed_is_said(checkpoint: Checkpoint | None, why: str):
    assert why in refused(lambda: refuse_unsealable(checkpoint, FORMER))


def test_a_seal_is_taken_away_on_the_former_server_only():
    assert unsealed(SEALED, FORMER) == replace(CHECKPOINT, epoch=3)
    assert NEW in refused(lambda: unsealed(SEALED, NEW))
    assert "not sealed" in refused(lambda: unsealed(CHECKPOINT, FORMER))
    assert "not sealed" in refused(lambda: unsealed(None, FORMER))
    # Once it is adopted, there is no way back by that command.
    assert "reads another server" in refused(
        lambda: unsealed(replace(CHECKPOINT, system_identifier=NEW), FORMER)
    )


def test_a_seal_is_for_one_server_with_its_slot_and_tables_as_they_were():
    assert seal_for(SEALED, NEW, 500, TABLES) == SEAL
    assert "not sealed" in refused(lambda: seal_for(CHECKPOINT, NEW, 500, TABLES))
    assert "7009" in refused(lambda: seal_for(SEALED, "7009", 500, TABLES))
    assert "is gone" in refused(lambda: seal_for(SEALED, NEW, None, TABLES))
    assert "is at 0/1F5" in refused(lambda: seal_for(SEALED, NEW, 501, TABLES))
    assert "other tables" in refused(lambda: seal_for(SEALED, NEW, 500, {11: "public.t"}))


def test_an_adopted_checkpoint_knows_the_tables_by_their_new_oids():
    made = adopted(SEALED, NEW, 1, 700, TABLES)
    assert made == Checkpoint(
        NEW,
        1,
        "stream",
        Position(end_lsn=700),
        700,
        epoch=3,
        snapshot=replace(KNOWN, known=Oids(TABLES, TABLES), labels=0),
    )
    assert made.snapshot is not None
    assert made.snapshot.known is not None
    assert made.snapshot.known.sum_of(12) == KNOWN.known.sum_of(2)  # type: ignore[union-attr]
    # A pipeline that never looked at its tables goes on so.
    assert adopted(replace(SEALED, snapshot=None), NEW, 1, 700, TABLES).snapshot is None


@pytest.mark.parametrize(
    ("subscription", "tables", "why"),
    [
        (FOLLOWS, ["public.t"], "public.u (on the new server)"),
        (FOLLOWS, ["public.t", "public.u", "public.v"], "public.v (on the former server)"),
        (replace(FOLLOWS, enabled=False), None, "not enabled"),
        (replace(FOLLOWS, slot=""), None, "has no slot"),
        (replace(FOLLOWS, without=("u",)), None, "does not have u"),
        (replace(FOLLOWS, unready=("t",)), None, "still copies t"),
    ],
)
def test_the_new_server_must_get_all_tables_by_one_subscription(
    subscription: Subscription, tables: list[str] | None, why: str
):
    former = list(TABLES.values()) if tables is None else tables
    assert why in refused(lambda: refuse_unfit(subscription, former, TABLES.values()), ConfigError)


def test_a_subscription_with_all_tables_fits():
    refuse_unfit(FOLLOWS, ["public.u", "public.t"], TABLES.values())


@pytest.mark.parametrize(
    ("new", "columns", "is_refused"),
    [
        ({21: "public.t"}, {}, False),
        ({11: "public.t"}, {11: "1 id integer ()"}, False),
        ({11: "public.u"}, {11: "2 id integer ()"}, False),
        ({11: "public.t"}, {11: "2 id integer ()"}, True),
    ],
    ids=["another oid", "the same columns", "another table, with a topic of its own", "other numbers"],
)
def test_columns_that_a_mirror_would_take_for_others_are_refused(
    new: dict[int, str], columns: dict[int, str], is_refused: bool
):
    both = ({11: "1 id integer ()"}, columns)
    former = {11: "public.t"}
    if is_refused:
        assert "public.t" in refused(lambda: refuse_same_oids(former, new, both, accept=False), ConfigError)
    else:
        refuse_same_oids(former, new, both, accept=False)
    refuse_same_oids(former, new, both, accept=True)


def test_lower_lsns_are_refused_unless_nobody_orders_by_them():
    refuse_lower(100, 101, accept=False)
    refuse_lower(100, 99, accept=True)
    assert "0/64" in refused(lambda: refuse_lower(100, 100, accept=False))


@pytest.mark.parametrize(
    ("new", "is_refused"),
    [
        ({"public.t": {"id": 1, "note": 3}}, False),
        ({"public.t": {"id": 1, "note": 3, "more": 4}}, False),
        ({"public.t": {"id": 1}}, False),
        ({"public.other": {"note": 9}}, False),
        ({"public.t": {"id": 1, "note": 2}}, True),
    ],
    ids=["the same", "one more", "one less", "another table", "without the gap"],
)
def test_columns_whose_fields_would_get_other_numbers_are_refused(
    new: dict[str, dict[str, int]], is_refused: bool
):
    former = {"public.t": {"id": 1, "note": 3}}
    if is_refused:
        said = refused(lambda: refuse_other_numbers(former, new, accept=False), ConfigError)
        assert "public.t.note (3, there 2)" in said
    else:
        refuse_other_numbers(former, new, accept=False)
    refuse_other_numbers(former, new, accept=True)

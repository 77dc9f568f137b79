"""A table that is set aside is stopped, and never equal."""

from cdcd.core.engine.checkpoint import AsideTable, Checkpoint
from cdcd.core.transactions.position import Position
from cdcd.tools.verify.delivery import stopped


def test_a_table_that_is_set_aside_is_named_with_its_place_its_fault_and_the_command():
    checkpoint = Checkpoint("1", 1, "", Position(), 0, tables=(AsideTable(7, 0x1F0, "size"),))
    said = stopped(checkpoint, 7, "public.t")
    assert "stopped" in said
    assert "since 0/1F0 (fault: size)" in said
    assert "`cdcd tables resume public.t`" in said
    assert stopped(checkpoint, 8, "public.other") == ""

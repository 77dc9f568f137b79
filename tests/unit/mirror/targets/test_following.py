import pytest

from cdcd.mirror.targets.evolution import Rename, aside_of, original_of, plan
from cdcd.mirror.targets.following import _set_aside
from cdcd.mirror.targets.target import Kind
from tests.unit.mirror.targets.test_evolution import column, table

OWN = ("_cdcd_commit_lsn", "_cdcd_event_no", "_cdcd_unknown")
BEGUN = table(column("id", 1), column(aside_of("a"), 2), column("b", 3))
"""The form while the columns `a` and `b` are being swapped, after the first step."""


@pytest.mark.parametrize(
    ("there", "names"),
    [
        pytest.param(("id", "a", "b", *OWN), {"a": aside_of("a")}, id="it was given its name back"),
        pytest.param(("id", "b", "a", *OWN), {}, id="the swap went on to its end"),
        pytest.param(("id", "b", *OWN), {}, id="it is gone"),
        pytest.param(
            ("id", *OWN, "a", "b"), {"a": aside_of("a")}, id="columns that were added stand behind our own"
        ),
    ],
)
def test_a_column_gets_its_temporary_name_again_if_it_stands_where_the_form_has_it(
    there: tuple[str, ...], names: dict[str, str]
):
    lacking = [each.name for each in BEGUN.columns if each.name not in there]
    assert _set_aside(BEGUN, there, lacking) == names


def test_a_column_of_another_name_is_not_set_aside():
    whole = table(column("id", 1), column("a", 2), column("b", 3))
    assert _set_aside(whole, ("id", "b", *OWN), ["a"]) == {}


def test_the_temporary_name_of_a_swap_leads_back_to_the_column():
    before = table(column("id", 1), column("a", 2), column("b", 3))
    after = table(column("id", 1), column("b", 2), column("a", 3))
    first, *_ = plan(before, after, Kind.MIRROR)
    assert first == Rename("a", aside_of("a"))
    assert isinstance(first, Rename)
    assert (original_of(first.to), original_of("a")) == ("a", "a")

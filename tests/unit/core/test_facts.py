import dataclasses
import re

import pytest

from cdcd.core.facts import facts_of
from cdcd.core.facts.listing import all_facts
from cdcd.core.facts.start import GapAccepted, LockAcquired, SlotDropped, StandbyWaiting
from cdcd.core.facts.tables import TopicCreated, TopicLost
from cdcd.mirror.watching import progress

ALL = [*all_facts(), *facts_of(vars(progress))]


def test_each_event_has_a_name_of_its_own():
    names = [fact.event for fact in ALL]
    assert len(set(names)) == len(names)


def test_a_fact_is_a_frozen_slotted_value_with_a_constant_dotted_name_and_a_meaning():
    for fact in ALL:
        assert re.fullmatch(r"[a-z]+(\.[a-z]+)?", fact.event), fact
        assert fact.level in {"info", "warning", "error", "critical"}, fact
        assert fact.__doc__, fact
        assert not fact.__doc__.startswith(fact.__name__), fact
        made = fact(*[None for _ in dataclasses.fields(fact)])
        assert not hasattr(made, "__dict__"), fact
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, dataclasses.fields(fact)[0].name, "other")


def test_facts_are_equal_if_kind_and_fields_are_equal():
    fact = TopicLost("shop.item", table="public.item", command="cdcd snapshot")
    same = TopicLost("shop.item", "public.item", "cdcd snapshot")
    assert fact == same
    assert hash(fact) == hash(same)
    assert fact != TopicLost("shop.item", "public.item", "other")
    assert LockAcquired("a") != SlotDropped("a")
    assert repr(TopicCreated("shop.item")) == "TopicCreated(topic='shop.item')"


def test_a_fact_without_a_value_for_a_field_has_its_default():
    assert StandbyWaiting("slot", None, "").client == ""
    assert GapAccepted("m", "p").tables == []
    assert GapAccepted("m", "p").tables is not GapAccepted("m", "p").tables


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), (("a", "b"), {}), (("a",), {"topic": "b"}), (("a",), {"other": "b"})]
)
def test_a_fact_with_missing_or_unknown_fields_is_an_error(values, named):
    with pytest.raises(TypeError, match="topic"):
        TopicCreated(*values, **named)


def test_a_field_of_a_fact_cannot_be_deleted():
    with pytest.raises(dataclasses.FrozenInstanceError):
        del TopicCreated("shop.item").topic


def test_no_field_takes_the_place_of_what_every_line_of_the_log_has():
    for fact in ALL:
        assert not set(fact.fields_logged()) & {
            "event", "level", "timestamp", "logger", "exc_info", "stack_info", "positional_args",
        }, fact  # fmt: skip

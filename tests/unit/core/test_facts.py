import dataclasses
import re

import pytest

from cdcd.core.facts import facts_of
from cdcd.core.facts.listing import all_facts
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


def test_no_field_takes_the_place_of_what_every_line_of_the_log_has():
    for fact in ALL:
        assert not set(fact.fields_logged()) & {
            "event", "level", "timestamp", "logger", "exc_info", "stack_info", "positional_args",
        }, fact  # fmt: skip

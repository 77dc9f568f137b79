"""What `cdcd check` says of the outbox."""

import asyncio
from typing import Any

import pytest

from cdcd.core.catalog.protection import Protections
from cdcd.core.errors import ConfigError
from cdcd.core.records.shaping.settings import Outbox, OutboxTable
from cdcd.daemon.rules.outbox import OutboxFacts, check_outbox, look_at_outbox

TABLE = OutboxTable("events", "to", "", "key", "payload")
OUTBOX = Outbox(("events",), messages=True, tables={("public", "outbox"): TABLE})


def test_an_outbox_that_works_is_named():
    (found,) = check_outbox(OutboxFacts((), ()), OUTBOX)
    assert (found.level, found.code) == ("ok", "outbox.source")
    assert "1 table and messages" in found.found


def test_what_cannot_work_is_an_error_and_what_is_not_published_a_warning():
    facts = OutboxFacts((ConfigError("No column payload.", hint="Add it."),), ("public.outbox",))
    error, warning = check_outbox(facts, OUTBOX)
    assert (error.level, error.code, error.fix) == ("error", "outbox.source", "Add it.")
    assert (warning.level, warning.code) == ("warning", "outbox.unpublished")
    assert "public.outbox" in warning.found


@pytest.mark.parametrize("hears", [True, False])
def test_a_server_that_sends_no_messages_is_refused_if_they_are_to_be_published(hears: bool):
    connection: Any = None
    found = asyncio.run(look_at_outbox(connection, {}, OUTBOX, Protections(), hears_messages=hears))
    assert found.unpublished == ("public.outbox",)
    assert len(found.refused) == (not hears)
    for error in found.refused:
        assert "sends no logical messages" in error.message
        assert "outbox.tables" in error.hint

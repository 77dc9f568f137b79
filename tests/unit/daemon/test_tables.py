"""Topics that are created together with the first one of a new table."""

import asyncio
from collections.abc import Mapping

from cdcd.core.errors import TransientError
from cdcd.daemon.tables import NewTables


def test_topics_of_tables_that_the_session_did_not_begin_with_are_created_ahead():
    async def published() -> Mapping[int, str]:
        return {1: "public.old", 2: "public.a", 3: "public.b"}

    new = NewTables(published, lambda name: f"shop.{name}", {1: "public.old"})
    assert asyncio.run(new.topics()) == ["shop.public.a", "shop.public.b"]


def test_a_list_that_postgresql_does_not_give_holds_up_nothing():
    async def published() -> Mapping[int, str]:
        raise TransientError("The connection is lost.")

    assert asyncio.run(NewTables(published, str, ()).topics()) == ()

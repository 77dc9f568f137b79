import asyncio

from cdcd.adapters.registry.registrar import Registrar
from cdcd.config.loading import Config
from cdcd.core.engine.reachability import Reachability, Waiting
from cdcd.core.facts import Fact
from cdcd.core.records.schema_registrations import SchemaIds, SchemaUse
from tests.schema_registry import SchemaRegistry

USE = SchemaUse("shop.public.orders-value", '{"type":"string"}')
OTHER = SchemaUse("shop.public.orders-value", '{"type":"long"}')


class Session:
    """A registrar with the events that it told."""

    def __init__(self, server: SchemaRegistry) -> None:
        data = {
            "name": "shop",
            "postgres": {"dsn": "host=127.0.0.1"},
            "kafka": {"bootstrap_servers": "127.0.0.1:1", "retry": {"initial_s": 0.01, "max_s": 0.05}},
            "format": {"value": "avro"},
            "registry": {"url": server.url},
        }
        self.facts: list[Fact] = []
        self.told = asyncio.Event()
        self.ids = SchemaIds(server.url)
        self.reach = Reachability(lambda: Waiting(0, 0, 0, None), self._observe)
        self.registrar = Registrar(Config.model_validate(data), self.ids, self.reach, self._observe)

    def _observe(self, fact: Fact) -> None:
        self.facts.append(fact)
        self.told.set()

    @property
    def events(self) -> list[str]:
        return [fact.event for fact in self.facts]


def test_a_known_schema_needs_no_registry():
    async def run() -> None:
        with SchemaRegistry() as server:
            session = Session(server)
            session.ids.put(USE, 7)
            server.stop()
            await session.registrar.ensure([USE])
            assert session.events == []

    asyncio.run(run())


def test_a_new_schema_waits_for_a_registry_that_is_away_and_both_ends_are_told():
    async def run() -> None:
        with SchemaRegistry() as server:
            session = Session(server)
            server.stop()
            waiting = asyncio.ensure_future(session.registrar.ensure([USE, OTHER]))
            await asyncio.wait_for(session.told.wait(), 120)
            assert session.events == ["registry.unreachable"]
            assert session.reach.up["registry"] is False
            assert not waiting.done()
            server.start()
            await asyncio.wait_for(waiting, 120)
            assert session.events == [
                "registry.unreachable",
                "registry.reachable",
                "registry.registered",
                "registry.registered",
            ]
            assert (session.ids.get(USE), session.ids.get(OTHER)) == (1, 2)

    asyncio.run(run())


def test_ids_that_the_registry_has_lost_are_forgotten_and_one_that_is_away_keeps_them():
    async def run() -> None:
        with SchemaRegistry() as server:
            session = Session(server)
            await session.registrar.ensure([USE])
            await session.registrar.verify()
            assert session.ids.get(USE) == 1
            server.stop()
            await session.registrar.verify()
            assert session.ids.get(USE) == 1
            server.start()
            server.schemas.clear()
            await session.registrar.verify()
            assert session.ids.get(USE) is None
            assert session.events[-1] == "registry.forgotten"

    asyncio.run(run())

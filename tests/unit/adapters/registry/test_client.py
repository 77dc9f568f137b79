import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcd.adapters.registry.client import PATIENCE_S, Registrar, Registry
from cdcd.config.loading import Config
from cdcd.core.engine.reachability import Reachability, Undelivered
from cdcd.core.errors import ConfigError, RegistryUnavailableError, SinkError
from cdcd.core.facts import Fact
from cdcd.core.records.schema_registrations import SchemaIds, SchemaUse
from tests.schema_registry import SchemaRegistry

USE = SchemaUse("shop.public.orders-value", '{"type":"string"}')
OTHER = SchemaUse("shop.public.orders-value", '{"type":"long"}')


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        yield registry


def client(server: SchemaRegistry, **settings: Any) -> Registry:
    data = {
        "name": "shop",
        "postgres": {"dsn": "host=127.0.0.1"},
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "format": {"key": "avro", "value": "avro"},
        "registry": {"url": server.url, **settings},
    }
    return Registry(Config.model_validate(data))


def test_a_schema_is_registered_once_and_keeps_its_id(server):
    registry = client(server)
    first = registry.register(USE)
    assert registry.register(USE) == first
    assert registry.register(OTHER) != first
    assert server.subjects == {"shop.public.orders-value": [1, 2]}
    assert registry.has(first)
    assert not registry.has(99)
    assert (registry.subjects(), registry.mode()) == (1, "READWRITE")


def test_the_compatibility_of_a_subject_is_set_before_the_first_schema(server):
    registry = client(server, compatibility="NONE")
    registry.register(USE)
    registry.register(OTHER)
    assert server.compatibility == {USE.subject: "NONE"}
    assert [each.split()[0] for each in server.asked] == ["PUT", "POST", "POST"]


def test_a_registry_that_knows_no_compatibility_of_a_new_subject_is_told_after_the_first_schema(server):
    server.is_apicurio = True
    registry = client(server, compatibility="NONE")
    registry.register(USE)
    registry.register(OTHER)
    assert server.compatibility == {USE.subject: "NONE"}
    assert [each.split()[0] for each in server.asked] == ["PUT", "POST", "PUT", "POST"]


def test_schemas_of_protobuf_are_registered_as_such_and_a_registry_that_takes_none_is_named(server):
    use = SchemaUse("shop.public.orders-value", 'syntax = "proto3";', "PROTOBUF")
    registry = client(server)
    assert registry.kinds() == ["JSON", "PROTOBUF", "AVRO"]
    assert registry.has(registry.register(use))
    server.kinds = ["AVRO"]
    with pytest.raises(SinkError, match="Invalid schema type PROTOBUF") as refused:
        registry.register(SchemaUse("other", 'syntax = "proto3";', "PROTOBUF"))
    assert "use a registry that takes PROTOBUF, or another format.value" in refused.value.hint


def test_a_schema_that_is_not_compatible_is_refused_with_what_to_do(server):
    server.refusing.add(USE.subject)
    with pytest.raises(SinkError, match="incompatible with an earlier") as refused:
        client(server).register(USE)
    assert USE.subject in refused.value.message
    assert f"PUT {server.url}/config/{USE.subject}" in refused.value.hint


def test_a_registry_that_must_not_be_written_is_only_asked(server):
    with pytest.raises(SinkError, match="not found") as refused:
        client(server, register_schemas=False).register(USE)
    assert "registry.register_schemas" in refused.value.hint
    known = client(server).register(USE)
    assert client(server, register_schemas=False).register(USE) == known


def test_a_password_and_a_token_are_sent_and_never_shown(server, tmp_path: Path):
    file = tmp_path / "password"
    file.write_text("geheim-2024\n")
    server.login = "Basic " + base64.b64encode(b"cdcd:geheim-2024").decode()
    assert client(server, user="cdcd", password="geheim-2024").subjects() == 0
    server.login = "Bearer t0ken-2024"
    assert client(server, token="t0ken-2024").subjects() == 0
    assert client(server, token_command=["echo", "t0ken-2024"]).subjects() == 0
    with pytest.raises(SinkError, match="401") as refused:
        client(server, user="cdcd", password="geheim-2025").subjects()
    assert "geheim" not in str(refused.value) + refused.value.hint
    assert "registry.user" in refused.value.hint


def test_a_registry_that_is_away_or_overloaded_is_tried_again_later(server):
    registry = client(server)
    server.stop()
    with pytest.raises(RegistryUnavailableError, match="does not answer"):
        registry.register(USE)
    server.start()
    assert registry.register(USE) == 1


def test_what_is_no_registry_is_named(server):
    data = client(server)
    data.url += "/elsewhere"
    with pytest.raises(SinkError, match="HTTP 404"):
        data.subjects()


def test_a_certificate_that_cannot_be_read_is_a_configuration_error(server, tmp_path: Path):
    server_url = server.url.replace("http:", "https:")
    with pytest.raises(ConfigError, match=r"registry\.ca_file"):
        client(server, url=server_url, ca_file=str(tmp_path / "none.pem"))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"url": "registry:8081"}, "must begin with http"),
        ({"url": "http://a:b@registry"}, "no user and password"),
        ({"user": "a"}, "belong together"),
        ({"user": "a", "password": "b", "token": "c"}, "both given"),
        ({"certificate_file": "/a"}, "belong together"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(server, settings, problem):
    with pytest.raises(ValueError, match=problem):
        client(server, **settings)


class Session:
    """A registrar with the events that it told."""

    def __init__(self, server: SchemaRegistry, patience_s: float = PATIENCE_S) -> None:
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
        self.reach = Reachability(lambda: Undelivered(0, 0, 0, None), self._observe)
        self.registrar = Registrar(
            Config.model_validate(data), self.ids, self.reach, self._observe, patience_s
        )

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


def test_a_subject_without_an_answer_is_refused_after_a_while_and_the_others_do_not_wait_for_it():
    async def run() -> None:
        with SchemaRegistry() as server:
            session = Session(server, patience_s=0.3)
            server.failing.add(USE.subject)
            another = SchemaUse("shop.public.items-value", USE.text)
            refused = await asyncio.wait_for(session.registrar.ensure([USE, another]), 120)
            assert list(refused) == [USE]
            assert f"gives no answer for subject {USE.subject}, but answers other" in refused[USE].message
            assert "HTTP 500" in refused[USE].message
            assert session.ids.get(another) == 1
            assert session.events == ["registry.unanswered", "registry.registered"]

            # The next attempt is refused with its first failure.
            asked = [each for each in server.asked if "versions" in each]
            assert list(await session.registrar.ensure([USE])) == [USE]
            assert len([each for each in server.asked if "versions" in each]) == len(asked) + 1

            # An answer makes it an ordinary subject.
            server.failing.clear()
            assert await session.registrar.ensure([USE]) == {}
            assert session.ids.get(USE) == 1

    asyncio.run(run())


def test_a_registry_that_answers_nothing_is_awaited_however_long_a_subject_has_no_answer():
    async def run() -> None:
        with SchemaRegistry() as server:
            # GIVEN a registry that answers every request with 500
            session = Session(server, patience_s=0.0)
            server.is_down = True
            waiting = asyncio.ensure_future(session.registrar.ensure([USE]))
            await asyncio.wait_for(session.told.wait(), 120)
            for _ in range(6):
                assert await asyncio.to_thread(server.arrived.acquire, timeout=120)
            assert not waiting.done()
            # WHEN it answers, THEN the schema is registered
            server.is_down = False
            assert await asyncio.wait_for(waiting, 120) == {}
            assert session.ids.get(USE) == 1

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

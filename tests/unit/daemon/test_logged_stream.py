import asyncio
from collections.abc import Iterator

import pytest

from cdcd.core.errors import PositionError
from cdcd.daemon.logged_stream import LoggedStream


def test_it_gives_the_frames_and_then_waits_for_the_end_of_the_session():
    async def read() -> None:
        stream = LoggedStream(iter([[b"a"], [b"b", b"c"]]))
        assert await stream.receive(1) == [b"a"]
        assert await stream.receive(1) == [b"b", b"c"]
        await stream.send(b"told to nobody")
        waiting = asyncio.create_task(stream.receive(1))
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        waiting.cancel()
        assert await stream.finish(1.0)

    asyncio.run(read())


def test_a_log_that_ends_early_ends_the_session():
    def damaged() -> Iterator[list[bytes]]:
        yield [b"a"]
        raise PositionError("damaged")

    async def read() -> None:
        stream = LoggedStream(damaged())
        await stream.receive(1)
        with pytest.raises(PositionError, match="damaged"):
            await stream.receive(1)

    asyncio.run(read())

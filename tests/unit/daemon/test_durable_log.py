import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcd.config.loading import Config, parse_config
from cdcd.core.engine.logged import LogOwner
from cdcd.core.errors import PositionError
from cdcd.daemon.durable_log import LoggedStream, has_log, open_log


def configured(folder: Path, durable: str) -> Config:
    return parse_config(
        "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\n"
        f"spool: {{durable: {durable}, durable_directory: {folder}}}\n",
        {},
    )


def test_a_log_that_is_there_counts_also_when_it_is_off_again(tmp_path):
    folder = tmp_path / "log"
    assert open_log(configured(folder, "false")) is None
    assert not folder.exists()
    log = open_log(configured(folder, "true"))
    assert log is not None
    assert not has_log(configured(folder, "true"))
    log.begin(LogOwner("shop", "cdcd_shop", "7", 1, ""), 100, 0)
    log.close()
    assert has_log(configured(folder, "true"))
    log = open_log(configured(folder, "false"))
    assert log is not None
    assert len(log.look().sessions) == 1
    log.close()


def test_a_folder_that_cannot_be_read_is_told_by_who_opens_the_log(tmp_path):
    file = tmp_path / "log"
    file.symlink_to(file)
    assert not has_log(configured(file, "true"))


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

"""Waiting for a socket in asyncio, without owning the socket: libpq does the reading and writing."""

import asyncio


async def readable(descriptor: int) -> None:
    """Return when `descriptor` has something to read (or has ended). Cancel-safe."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def writable(descriptor: int) -> None:
    """Return when `descriptor` takes something again (or has ended). Cancel-safe."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(descriptor, _set, ready)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)

"""What `cdcd check` says of the schema registry, without registering anything."""

import asyncio
from collections.abc import Sequence

from cdcd.checks.finding import Finding
from cdcd.config.loading import Config
from cdcd.registry.client import Registry

SUBJECT = "schema registry"

_READ_WRITE = "READWRITE"


def examine_registry(mode: str, subjects: int, *, url: str, registers: bool) -> list[Finding]:
    """What follows from the registry's answers. `registers`: cdcd is to register schemas."""
    if registers and mode not in ("", _READ_WRITE):
        return [
            Finding(
                "error",
                "registry.mode",
                SUBJECT,
                f"{url} is in mode {mode}, so that it takes no new schemas",
                f'PUT {url}/mode with {{"mode": "READWRITE"}}; or register the schemas by another way, and set '
                "registry.register_schemas: false.",
            )
        ]
    return [
        Finding(
            "ok", "registry.mode", SUBJECT, f"{url}: {subjects} subjects{f', mode {mode}' if mode else ''}"
        )
    ]


async def ask_registry(config: Config) -> tuple[Sequence[Finding], None]:
    """The registry's findings, if a format needs one. Raises what `Registry` raises."""
    if not config.needs_registry:
        return [], None
    registry = Registry(config)
    subjects = await asyncio.to_thread(registry.subjects)
    mode = await asyncio.to_thread(registry.mode)
    return (
        examine_registry(mode, subjects, url=registry.url, registers=config.registry.register_schemas),
        None,
    )

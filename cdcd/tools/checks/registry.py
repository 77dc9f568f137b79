"""What `cdcd check` says of the schema registry, without registering anything."""

import asyncio
from collections.abc import Sequence

from cdcd.adapters.registry.client import Registry
from cdcd.config.loading import Config
from cdcd.core.records.protobuf.form import PROTOBUF
from cdcd.telemetry.findings import Finding

SUBJECT = "schema registry"

_READ_WRITE = "READWRITE"


def examine_kinds(kinds: Sequence[str], wanted: str, *, url: str) -> list[Finding]:
    """What follows from the kinds of schemas that the registry knows. `wanted` is what the pipeline writes."""
    if not kinds or wanted in kinds:
        return []
    return [
        Finding(
            "error",
            "registry.types",
            SUBJECT,
            f"{url} takes schemas of {', '.join(kinds)}, and the pipeline's are {wanted}",
            f"Use a registry that takes {wanted}, or another format.value.",
        )
    ]


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
    kinds = await asyncio.to_thread(registry.kinds)
    wanted = "PROTOBUF" if config.format.value == PROTOBUF else "AVRO"
    return (
        [
            *examine_registry(mode, subjects, url=registry.url, registers=config.registry.register_schemas),
            *examine_kinds(kinds, wanted, url=registry.url),
        ],
        None,
    )

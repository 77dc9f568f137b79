"""Reads values with Java's own Avro (`ReadAvro.java`), which needs a JDK: a runtime alone does not run sources."""

import io
import json
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import fastavro

from deploy.local.maven import jars
from deploy.local.programs import java
from tests.bench.debezium import LOCK, VERSION

_LOCK: Final = Path(__file__).with_name("avro.lock")
_PROGRAM: Final = Path(__file__).with_name("ReadAvro.java")


@cache
def has_compiler() -> bool:
    """Whether the Java runtime here can run a source file."""
    said = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, check=True).stdout
    return "jdk.compiler@" in said


def read(values: Iterable[bytes], schemas: dict[int, str]) -> list[Any]:
    """What Java's Avro reads in these values, each with its wire format's head, as fastavro's types.

    Raises:
        AssertionError: Java's Avro refuses a schema or a value.
    """
    lines, used = [], []
    for value in values:
        schema_id = int.from_bytes(value[1:5], "big")
        used.append(schema_id)
        lines.append(f"{schema_id} {b64encode(value[5:]).decode()}\n")
    with tempfile.TemporaryDirectory() as folder:
        for schema_id in set(used):
            (Path(folder) / f"{schema_id}.avsc").write_text(schemas[schema_id])
        path = f"{jars('avro-1.12.1', _LOCK)}/*:{jars(f'debezium/{VERSION}', LOCK)}/*"
        command: list[str | Path] = [java(), "-Xmx1g", "-cp", path, _PROGRAM, folder]
        done = subprocess.run(command, input="".join(lines), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Any] = []
    parsed: dict[int, Any] = {}
    for schema_id, line in zip(used, done.stdout.split("\n")[:-1], strict=True):
        if schema_id not in parsed:
            parsed[schema_id] = fastavro.parse_schema(json.loads(schemas[schema_id]))
        found += fastavro.json_reader(io.StringIO(line), parsed[schema_id])
    return found

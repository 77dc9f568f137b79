"""What programs depend on: the names of `import cdcd`, and what it costs to import it."""

import importlib
import json
import subprocess
import sys

import pytest

import cdcd
import cdcd.stream
from tests.public_api import LISTING, listing


def test_the_api_is_as_it_is_listed():
    assert LISTING.read_text() == listing(), (
        "The public API of `import cdcd` has changed. If that is meant: python -m tests.public_api writes the listing "
        "again; CHANGELOG.md says what changed, and a break waits for a version that may have breaks."
    )


def test_a_break_is_noticed(monkeypatch):
    def connect(dsn: str, *, publication: str, slot: str) -> None: ...

    monkeypatch.setattr(cdcd, "connect", connect)
    assert LISTING.read_text() != listing()


def test_the_names_are_those_of_the_stream_and_each_is_there():
    assert cdcd.__all__ == cdcd.stream.__all__
    for name in cdcd.__all__:
        assert getattr(cdcd, name) is getattr(cdcd.stream, name)
    assert set(cdcd.__all__) <= set(dir(cdcd))


def test_another_name_is_an_error():
    with pytest.raises(AttributeError, match="module 'cdcd' has no attribute 'conect'"):
        _ = importlib.import_module("cdcd").conect
    with pytest.raises(ImportError):
        importlib.import_module("cdcd.no_such_module")


def loaded(code: str) -> set[str]:
    """The packages that are imported after this code in a new process, and the modules of cdcd."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name if name.startswith("cdcd") else name.split(".")[0] for name in json.loads(done.stdout)}


def test_importing_cdcd_imports_nothing():
    modules = loaded("import cdcd")
    assert {name for name in modules if name.startswith("cdcd.")} == set()


def test_what_a_program_names_brings_no_client_until_it_connects():
    modules = loaded("from cdcd import connect\nconnect('', publication='p')")
    assert "cdcd.stream.stream" in modules
    assert modules.isdisjoint(
        {"psycopg", "confluent_kafka", "pydantic", "click", "structlog", "cdcd.stream.source"}
    )

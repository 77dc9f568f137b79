"""A real Debezium and cdcd on one WAL: `make debezium` in three of its fourteen sets of modes."""

from pathlib import Path

import pytest

from tests.debezium.beside import run


@pytest.mark.long
def test_every_record_is_debeziums_but_for_the_listed_differences(scratch: Path) -> None:
    # The folder itself has the servers that tests share.
    folder = scratch / "debezium-beside"
    folder.mkdir(mode=0o711)
    found = run(["isostring", "nanoseconds", "structured"], [], folder)
    assert [line for compared in found.values() for line in compared.wrong] == []
    # All types, all rare values, and BEGIN and END of each transaction.
    assert [compared.records for compared in found.values()] == [167, 479, 167]
    assert min(compared.values for compared in found.values()) > 90_000

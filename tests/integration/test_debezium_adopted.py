"""Five connectors of the corpus at a real Debezium, and cdcd with what `cdcd adopt` makes of them, on one WAL."""

from pathlib import Path

import pytest

from tests.debezium.adopted import CONNECTORS, run


@pytest.mark.chaos
def test_an_adopted_connector_has_debeziums_records_but_for_the_listed_differences(scratch: Path) -> None:
    # The folder itself has the servers that tests share.
    folder = scratch / "debezium-adopted"
    folder.mkdir(mode=0o711)
    found = run(list(CONNECTORS), folder)
    assert [line for compared in found.values() for line in compared.wrong] == []
    assert min(compared.records for compared in found.values()) > 1

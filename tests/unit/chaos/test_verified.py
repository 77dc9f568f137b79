import json
import re
from dataclasses import replace

import pytest

from tests.chaos.verified_planted import altered, deleted
from tests.chaos.verified_results import Planted, Run, add, plan
from tests.chaos.verified_tables import ASIDE, KINDS, tables

RUN = Run(
    "2026-01-02", "abc", 1, 1, 1, 18, "compiled", 20, 5_000_000, 5_100_000, (500.0, 498.7), 1, 200.4, 150.2,
    144_400_000, 3.2, "equal",
)  # fmt: skip
VALUE = (
    b'{"before":null,"after":{"id":5,"n":1,"note":"aside"},"source":{"version":"1","snapshot":"false","txId":7,'
    b'"lsn":90,"commit_lsn":91,"event_serial_no":3,"schema_id":"ab"},"transaction":null,"op":"u","ts_ms":1}'
)


def test_rows_of_several_invocations_add_up():
    text = add(add("", RUN), replace(RUN, seed=2, kills=2, seconds=300.0, peak_bytes=155_000_000))
    assert (
        "| 2026-01-02 | abc | 1 | 1 | 1 | 18 | compiled | 20 | 5,000,000 | 5,100,000 | 499 of 500 | 1 | 200 | 150 "
        "| 144 MB | 3 | equal |"
    ) in text
    assert "Runs: 2, with 3 kills of the daemon; 0 were not equal." in text
    assert "250 s in the median, 300 s at most. The peak memory was 155 MB at most." in text
    assert "1 were not equal" in add(text, replace(RUN, verdict="exit code 9"))


def test_rows_that_were_made_different_have_a_table_of_their_own():
    planted = Planted("2026-01-02", "abc", 1, 36, 36, 0, "equal")
    text = add(add(add("", RUN), planted), replace(RUN, number=2))
    assert "| 2026-01-02 | abc | 1 | 36 | 36 | 0 | equal |" in text
    assert "Runs: 2," in text
    assert planted.is_sound
    assert not replace(planted, named=35).is_sound
    assert not replace(planted, besides=1).is_sound
    assert not replace(planted, repaired="differs").is_sound


def test_a_run_is_sound_if_it_is_equal_within_its_memory():
    assert RUN.is_sound
    assert not replace(RUN, verdict="equal so far").is_sound
    assert not replace(RUN, peak_bytes=300_000_000).is_sound


def test_the_seed_draws_all_kills():
    kills = plan(5, 50, 10)
    assert kills == plan(5, 50, 10) != plan(6, 50, 10)
    assert (len(kills), sum(map(len, kills))) == (50, 10)
    for each in plan(5, 2, 10):
        assert [kill.share for kill in each] == sorted(kill.share for kill in each)


def test_tables_have_the_rows_together_and_every_kind_in_turn():
    found = tables(20, 5_000_000)
    assert sum(table.rows + ASIDE for table in found) == 5_000_000
    assert len({table.name for table in found}) == 20
    assert {table.name.rpartition("_")[0] for table in found} == set(KINDS)
    assert [table.name for table in found if not table.has_key] == ["loose_0", "loose_1"]


@pytest.mark.parametrize("table", tables(10, 1000), ids=lambda table: table.name)
def test_writers_leave_the_last_rows_alone_and_take_two_rows_in_their_order(table):
    script = table.script()
    draws = re.findall(r"\\set (one|two) random\((\d+), (\d+)\)", script)
    assert draws == [("one", "1", "49"), ("two", "50", "98")]
    assert "{" not in script
    assert all(str(number) in table.aside() for number in (99, 100))
    assert all("{" not in statement for statement in table.create())


def test_a_planted_record_has_a_place_of_its_own():
    found = json.loads(altered(VALUE, 500, 2))
    assert found["after"] == {"id": 5, "n": 1, "note": "aslde"}
    assert (found["source"]["commit_lsn"], found["source"]["event_serial_no"]) == (500, 2)


def test_a_planted_delete_has_the_row_that_there_was():
    found = json.loads(deleted(VALUE, 500, 2))
    assert (found["op"], found["before"], found["after"]) == ("d", {"id": 5, "n": 1, "note": "aside"}, None)
    assert (found["source"]["txId"], found["source"]["commit_lsn"]) == (7, 500)

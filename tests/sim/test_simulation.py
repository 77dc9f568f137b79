from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from cdcd.build import is_compiled
from cdcd.core.records.cloud_events import BINARY, STRUCTURED
from tests.sim import __main__ as command
from tests.sim.events import EnvelopedEncoder, Seen
from tests.sim.expected import PUBLISHED
from tests.sim.flattened import InflatedEncoder
from tests.sim.planted_focuses import (
    DESCRIBED,
    FILTERED,
    FILTERED_AND_CUT,
    FILTERED_WHOLE,
    HEARTBEATS,
    HEARTBEATS_AT_A_SHUTDOWN,
    LARGE_MESSAGES,
    LOCKED_BESIDE_THE_STREAM,
    LOCKED_WHILE_EXPORTED,
    METADATA,
    METADATA_AND_CUT,
    PARTED,
    PARTED_AND_CUT,
    PARTED_BESIDE_CHUNKS,
    PROTECTED,
    PROTECTED_AND_DROPPED,
    PROTECTED_AND_SWAPPED,
    PUBLISHING,
    PUBLISHING_AND_CUT,
    ROUTED,
    ROUTED_AND_CUT,
    ROUTED_AND_SWAPPED,
    ROUTED_BESIDE_THE_STREAM,
    ROUTED_WHOLE,
    SHARED,
    SHARED_AND_CUT,
    SHARED_BESIDE_THE_STREAM,
    WATERMARKS,
    WATERMARKS_AND_CUT,
    WATERMARKS_AT_LEAST_ONCE,
)
from tests.sim.session import Parts
from tests.sim.settings import (
    DURABLE,
    FLATTENED,
    HANGING,
    HEALED,
    HEALED_AND_KILLED,
    HEALED_AND_NAMES,
    KEYLESS,
    KEYLESS_AND_QUIET,
    LEAVING_OUT,
    LEAVING_OUT_AND_READING,
    LOST_SLOTS,
    LOST_SLOTS_AND_NAMES,
    PARTITIONED,
    REFUSED,
    SKIPPING,
    TABLE_FAULTS,
    TABLE_FAULTS_AND_KILLS,
)
from tests.sim.world import World

pytestmark = pytest.mark.sim

if not is_compiled():  # no bug can be planted in compiled classes
    from tests.sim import planted_seeds

SEEDS_PER_TEST = 50

SEEDS_UNCOMPILED = 50
"""Number of seeds that `make test` runs both ways. The next ones run compiled, or uncompiled without a C compiler."""

SEEDS_TESTED = 150
"""Number of seeds in `make test`. `make sim` runs all of them."""

PLANTED = command.planted()
SEEDS = {} if is_compiled() else planted_seeds.seeds()


def runs(first: int) -> list[pytest.MarkDecorator]:
    """Marks of the test whose first seed is `first`."""
    if first < SEEDS_UNCOMPILED:
        return []
    return [pytest.mark.again if first < SEEDS_TESTED else pytest.mark.search]


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=runs(first)) for first in range(0, 600, SEEDS_PER_TEST)]
)
def test_every_promise_holds_whatever_breaks(first, tmp_path):
    for seed in range(first, first + SEEDS_PER_TEST):
        run_seed(seed, tmp_path)


def further(focus: Mapping[str, Any], *more: object, name: str) -> Any:
    """Parameters of a test that `make sim` runs, and `make test` does not: it has others of the same test."""
    return pytest.param(focus, *more, id=name, marks=pytest.mark.search)


def run_seed(seed: int, tmp_path: Path) -> None:
    try:
        World(seed, str(tmp_path)).run()
    except Exception as error:
        error.add_note(f"replay: python -m tests.sim --seed {seed} --trace")
        raise


def ran(tmp_path: Path, focus: Mapping[str, Any]) -> Iterator[World]:
    """Sixty seeds with these settings, each after its run."""
    for seed in range(60):
        world = World(seed, str(tmp_path), focus=focus)
        try:
            world.run()
        except Exception as error:
            error.add_note(f"seed {seed} of {focus}")
            raise
        yield world


@pytest.mark.again
@pytest.mark.parametrize(
    "chunk_bytes", [1, 1 << 20], ids=["large tables wait for each other", "small ones are read at once"]
)
def test_tables_that_are_looked_up_ahead_keep_every_promise(chunk_bytes, tmp_path):
    """As the daemon does it: many tables are looked up while a few are read."""
    for seed in range(40):
        focus = {
            "tables_ahead": 32,
            "added_tables": True,
            "parallelism": 1 + seed % 2,
            "chunk_bytes": chunk_bytes,
        }
        try:
            World(seed, str(tmp_path), focus=focus).run()
        except Exception as error:
            error.add_note(f"seed {seed} of {focus}")
            raise


@pytest.mark.again
def test_of_large_messages_size_and_digest_come_and_the_connection_is_renewed(tmp_path):
    said: list[str] = []
    for seed in range(12):
        World(seed, str(tmp_path), focus=LARGE_MESSAGES, log=said.append).run()
    assert any("renews its connection" in line for line in said)


@pytest.mark.again
@pytest.mark.parametrize(
    "focus", [pytest.param(HANGING, id="live"), further({**DURABLE, "p_hang": 0.1}, name="durable")]
)
def test_a_commit_that_readers_do_not_see_is_neither_lost_nor_delivered_twice(tmp_path, focus):
    for world in ran(tmp_path, focus):
        assert not world.refused


@pytest.mark.again
@pytest.mark.parametrize(
    "focus",
    [PROTECTED, PROTECTED_AND_SWAPPED, PROTECTED_AND_DROPPED],
    ids=["as drawn", "swapped", "dropped"],
)
def test_a_protected_column_stays_protected_whatever_it_is_called(tmp_path, focus):
    sealed = withheld = 0
    for world in ran(tmp_path, focus):
        assert world.oracle.protected is not None
        sealed += world.oracle.protected.sealed
        withheld += world.withheld
    assert sealed > 30, "values were sealed under other names than the rule's"
    assert withheld < 12, "most tables are not withheld"


@pytest.mark.again
@pytest.mark.parametrize(
    "focus", [pytest.param(LOST_SLOTS, id="rows"), further(LOST_SLOTS_AND_NAMES, name="names")]
)
def test_after_a_lost_slot_the_topics_equal_the_tables_that_are_read_again(tmp_path, focus):
    gaps = sum(world.gaps for world in ran(tmp_path, focus))
    assert gaps > 60


@pytest.mark.again
@pytest.mark.parametrize(
    ("focus", "often"),
    [
        pytest.param(HEALED, 60, id="rows"),
        pytest.param(HEALED_AND_KILLED, 30, id="killed"),
        further(HEALED_AND_NAMES, 60, name="names"),
    ],
)
def test_after_a_lost_slot_topics_are_healed_by_their_differences(tmp_path, focus, often):
    gaps = records = 0
    for world in ran(tmp_path, focus):
        assert world.oracle.healed is not None
        gaps += world.gaps
        records += world.oracle.healed.records
    assert gaps > often
    assert records > 100


@pytest.mark.again
@pytest.mark.parametrize(
    "focus", [further(KEYLESS, name="often"), pytest.param(KEYLESS_AND_QUIET, id="seldom")]
)
def test_the_topic_of_a_table_without_a_key_has_its_rows_once_however_often_it_is_read(tmp_path, focus):
    wholes = left_out = 0
    for world in ran(tmp_path, focus):
        assert world.oracle.fold is not None
        wholes += world.oracle.fold.wholes
        left_out += world.oracle.left_out_changes
    assert wholes > 150, "tables were read again"
    assert left_out > 60, "changes were left out that the rows have"


@pytest.mark.again
def test_first_starts_that_come_to_nothing_leave_what_the_next_one_goes_on_from(tmp_path):
    said: list[str] = []
    for seed in range(150):
        try:
            World(seed, str(tmp_path), log=said.append, focus=REFUSED).run()
        except Exception as error:
            error.add_note(f"seed {seed} with the focus REFUSED")
            raise
    ends = [line for line in said if "took back its slot" in line or "before it drops the slot" in line]
    assert len(ends) > 50, "slots were taken back"


@pytest.mark.again
@pytest.mark.parametrize(
    "focus", [further(PUBLISHING, name="as drawn"), pytest.param(PUBLISHING_AND_CUT, id="cut and killed")]
)
def test_events_are_published_once_in_the_order_of_their_transactions(tmp_path, focus):
    published = 0
    for world in ran(tmp_path, focus):
        published += sum(each.op == PUBLISHED for each in world.oracle.expected)
    assert published > 100


@pytest.mark.again
@pytest.mark.parametrize(
    "focus",
    [
        further(FILTERED, name="as drawn"),
        further(FILTERED_WHOLE, name="whole rows"),
        pytest.param({**FILTERED_AND_CUT, "metadata": True}, id="cut, killed and counted"),
        further({**FILTERED_AND_CUT, "p_keep_toast": 0.6}, name="values that are not sent"),
    ],
)
def test_a_filtered_topic_has_the_rows_that_match_and_no_others(tmp_path, focus):
    deleted = 0
    for world in ran(tmp_path, focus):
        deleted += sum(each.op == "d" and each.change.what == "U" for each in world.oracle.expected)
    assert deleted > 30, "rows left the filter"


@pytest.mark.again
@pytest.mark.parametrize(
    "focus",
    [
        further(PARTED, name="as drawn"),
        pytest.param({**PARTED_AND_CUT, "metadata": True}, id="cut, killed and counted"),
        further(PARTED_BESIDE_CHUNKS, name="beside chunks"),
    ],
)
def test_a_row_is_in_the_partition_of_its_values_and_in_no_other_one(tmp_path, focus):
    moved = 0
    for world in ran(tmp_path, focus):
        assert world.oracle.partitions is not None
        moved += world.oracle.partitions.moved
    assert moved > 100, "rows moved"


@pytest.mark.again
@pytest.mark.parametrize(
    "focus",
    [
        pytest.param(ROUTED, id="as drawn"),
        further(ROUTED_WHOLE, name="whole rows"),
        pytest.param({**ROUTED_AND_CUT, "metadata": True}, id="cut, killed and counted"),
        further(ROUTED_AND_SWAPPED, name="names change hands"),
        further(ROUTED_BESIDE_THE_STREAM, name="beside the stream"),
        further({**ROUTED, "filters": True}, name="filtered"),
        further({**ROUTED_WHOLE, "filters": True}, name="filtered and whole"),
        further({**ROUTED, "p_keep_toast": 0.6}, name="values that are not sent"),
    ],
)
def test_each_row_is_in_the_topic_of_its_route_and_in_no_other(tmp_path, focus):
    moved = 0
    for world in ran(tmp_path, focus):
        moved += sum(each.op == "d" and each.change.what == "U" for each in world.oracle.expected)
    assert moved > 30, "rows went to other topics"


@pytest.mark.again
@pytest.mark.parametrize(
    "focus",
    [
        pytest.param(SHARED, id="names change hands"),
        pytest.param(SHARED_AND_CUT, id="cut and killed"),
        pytest.param(SHARED_BESIDE_THE_STREAM, id="beside the stream"),
        pytest.param({**LOST_SLOTS_AND_NAMES, "shared": True}, id="lost slots"),
        pytest.param({**KEYLESS, "shared": True}, id="without keys"),
    ],
)
def test_tables_that_share_a_topic_are_told_apart_and_each_is_equal(tmp_path, focus):
    several = 0
    for world in islice(ran(tmp_path, focus), 15):
        assert world.oracle.fold is not None
        several += len(world.oracle.fold.topics) > 1
    assert several > 5, "rows of several tables came"


@pytest.mark.again
@pytest.mark.parametrize(
    "focus", [further(METADATA, name="as drawn"), pytest.param(METADATA_AND_CUT, id="cut and killed")]
)
def test_transaction_metadata_counts_the_records_that_came(tmp_path, focus):
    seen = 0
    for world in ran(tmp_path, focus):
        assert world.oracle.transactions is not None
        seen += len(world.oracle.transactions.by_id)
    assert seen > 200


@pytest.mark.again
@pytest.mark.parametrize(
    "focus",
    [DESCRIBED, {**DESCRIBED, "p_decode": 0.6, "snapshot_mode": "never"}],
    ids=["far behind", "a little behind"],
)
def test_no_column_is_described_with_the_number_of_another_one(tmp_path, focus):
    numbered = unnumbered = 0
    for world in ran(tmp_path, focus):
        assert world.oracle.descriptions is not None
        numbered += world.oracle.descriptions.numbered
        unnumbered += world.oracle.descriptions.unnumbered
    assert numbered > 10 * unnumbered > 0


@pytest.mark.again
@pytest.mark.parametrize(
    "focus",
    [
        further(WATERMARKS, name="as drawn"),
        pytest.param(WATERMARKS_AT_LEAST_ONCE, id="at least once"),
        pytest.param(WATERMARKS_AND_CUT, id="cut and killed"),
        further({**WATERMARKS, **DURABLE}, name="durable log"),
    ],
)
def test_what_a_watermark_names_stands_before_it(tmp_path, focus):
    count = 0
    for world in ran(tmp_path, focus):
        count += world.oracle.watermarks.count
    assert count > 1000


@pytest.mark.again
@pytest.mark.parametrize(
    "focus", [pytest.param(HEARTBEATS, id="as drawn"), further(HEARTBEATS_AT_A_SHUTDOWN, name="shut down")]
)
def test_a_heartbeat_names_what_kafka_holds_before_it(tmp_path, focus):
    heartbeats = queries = 0
    for world in ran(tmp_path, focus):
        heartbeats += world.oracle.heartbeats.count
        queries += world.oracle.heartbeats.queries
    assert heartbeats > 1000
    assert queries > 1000


@pytest.mark.again
@pytest.mark.parametrize("focus", [LOCKED_WHILE_EXPORTED, LOCKED_BESIDE_THE_STREAM, PARTITIONED])
def test_locked_tables_and_partitioned_ones_hold_up_nothing(focus, tmp_path):
    for seed in range(20):
        try:
            World(seed, str(tmp_path), focus=focus).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.again
def test_operations_without_records_count_for_the_position_of_a_restart(tmp_path):
    for seed in range(30):
        for skipped in (("u", "d"), ("c",)):
            try:
                World(seed, str(tmp_path), focus={**SKIPPING, "skipped": skipped}).run()
            except Exception as error:
                error.add_note(f"seed {seed} with the focus SKIPPING, without records of {skipped}")
                raise


@pytest.mark.again
@pytest.mark.parametrize("small", [False, True])
def test_a_durable_log_bridges_outages_of_kafka_whatever_is_killed(small, tmp_path):
    spooled = delivered = 0
    for seed in range(30):
        said: list[str] = []
        try:
            World(seed, str(tmp_path), log=said.append, focus={**DURABLE, "small_log": small}).run()
        except Exception as error:
            error.add_note(f"seed {seed} with the focus DURABLE, small_log {small}")
            raise
        spooled += sum(": spools from" in line for line in said)
        delivered += sum(": a logged session is delivered" in line for line in said)
    assert spooled > 30
    assert delivered > 10


@pytest.mark.again
def test_tables_that_are_left_out_count_for_the_position_and_come_in_and_go_out_by_their_names(tmp_path):
    for seed in range(60):
        try:
            World(seed, str(tmp_path), focus=LEAVING_OUT).run()
        except Exception as error:
            error.add_note(f"seed {seed} with the focus LEAVING_OUT")
            raise


@pytest.mark.again
def test_a_table_that_comes_back_from_a_name_that_is_left_out_is_equal_to_its_topic(tmp_path):
    for seed in range(100):
        try:
            World(seed, str(tmp_path), focus=LEAVING_OUT_AND_READING).run()
        except Exception as error:
            error.add_note(f"seed {seed} with the focus LEAVING_OUT_AND_READING")
            raise


@pytest.mark.skipif(
    is_compiled(), reason="a class that is not compiled cannot refuse rows in front of a compiled one"
)
def test_a_fault_of_a_table_stops_that_table_alone_and_it_comes_back_equal(tmp_path):
    for seed in range(40):
        try:
            World(seed, str(tmp_path), focus=TABLE_FAULTS).run()
        except Exception as error:
            error.add_note(f"seed {seed} with the focus TABLE_FAULTS")
            raise


@pytest.mark.skipif(
    is_compiled(), reason="a class that is not compiled cannot refuse rows in front of a compiled one"
)
@pytest.mark.parametrize(
    ("seed", "focus"), [(6031, "durable log"), (8563, "cut"), (9128, "drops"), (9344, "plain")]
)
def test_a_seed_with_faults_of_tables_that_failed_before_passes(tmp_path, seed: int, focus: str):
    World(seed, str(tmp_path), focus=TABLE_FAULTS_AND_KILLS[focus]).run()


@pytest.mark.skipif(
    is_compiled(), reason="a class that is not compiled cannot refuse rows in front of a compiled one"
)
@pytest.mark.parametrize("focus", TABLE_FAULTS_AND_KILLS)
def test_a_kill_in_the_fault_of_a_table_costs_nothing(tmp_path, focus: str):
    for seed in range(12):
        try:
            World(seed, str(tmp_path), focus=TABLE_FAULTS_AND_KILLS[focus]).run()
        except Exception as error:
            error.add_note(f"seed {seed} with the focus TABLE_FAULTS_AND_KILLS, {focus}")
            raise


@pytest.mark.again
def test_flattened_records_keep_the_promises_of_the_stream(tmp_path):
    for seed in range(30):
        try:
            World(seed, str(tmp_path), parts=Parts(encoder=InflatedEncoder), focus=FLATTENED).run()
        except Exception as error:
            error.add_note(f"seed {seed} with the focus FLATTENED")
            raise


@pytest.mark.again
@pytest.mark.parametrize("mode", [STRUCTURED, BINARY])
@pytest.mark.parametrize("focus", [{}, METADATA_AND_CUT, SKIPPING], ids=["as drawn", "counted", "skipping"])
def test_cloudevents_keep_the_promises_of_the_stream_and_each_has_one_id(tmp_path, focus, mode):
    made = 0
    for seed in range(20):
        seen = Seen()
        try:
            encoder = partial(EnvelopedEncoder, seen=seen, mode=mode)
            World(seed, str(tmp_path), parts=Parts(encoder=encoder), focus=focus).run()
        except Exception as error:
            error.add_note(f"seed {seed} of {focus} in the mode {mode}")
            raise
        made += len(seen.by_id)
    assert made > 100


@pytest.mark.again
def test_a_seed_does_the_same_each_time(tmp_path):
    def trace(seed: int) -> list[str]:
        said: list[str] = []
        World(seed, str(tmp_path), log=said.append).run()
        return said

    for seed in range(20):
        assert trace(seed) == trace(seed)


@pytest.mark.again
def test_nothing_stays_in_the_spool_directory(tmp_path):
    for seed in range(20):
        run_seed(seed, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(is_compiled(), reason="no bug can be planted in compiled classes")
def test_the_command_says_how_to_replay_a_seed_that_fails(capsys):
    assert command.main(["--seeds", "20", "--planted", "confirm_on_receive"]) == 1
    said = capsys.readouterr().out
    assert "replay: python -m tests.sim --seed 0 --trace --planted confirm_on_receive" in said


def test_the_command_counts_the_seeds_that_passed(capsys):
    assert command.main(["--seeds", "5", "--start", "40"]) == 0
    assert "5 seeds in" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_bug_is_found(name, tmp_path, record_property):
    seed = SEEDS.get(name)
    if seed is None or not planted_seeds.is_found(name, seed, str(tmp_path)):
        record_property("out of date", f"seed {seed} does not find {name}: python -m tests.sim.planted_seeds")
        seed = planted_seeds.search(name)
        assert seed is not None, f"{planted_seeds.SEEDS_MAX} seeds did not find {name}"
    # It was the bug, and nothing else.
    World(seed, str(tmp_path), focus=PLANTED[name].focus).run()


@pytest.mark.skipif(is_compiled(), reason="no bug can be planted in compiled classes")
def test_the_table_of_seeds_names_planted_bugs_only():
    assert SEEDS.keys() <= PLANTED.keys(), "python -m tests.sim.planted_seeds"


@pytest.mark.search
@pytest.mark.parametrize("name", sorted(PLANTED))
def test_the_table_has_the_first_seed_that_finds_a_planted_bug(name):
    assert SEEDS.get(name) == planted_seeds.search(name), "python -m tests.sim.planted_seeds"

from cdcd.mirror.base.formats import FORMER, Version, former_version
from cdcd.mirror.base.position import NO_VERSION, Carried, Kept, Node, Position, position_of
from cdcd.mirror.base.takeover import begin
from cdcd.mirror.targets.state import Place, State

NODES = {
    "1": Node(FORMER),
    "2": Node(FORMER),
    # A compaction by the owner.
    "3": Node("2"),
}


def test_the_state_of_the_last_mirror_is_found_below_commits_of_others():
    assert former_version(Version("3", NODES, None)) == "2"
    assert former_version(Version(NO_VERSION, {}, None)) is None


def test_a_fold_after_the_mirror_without_a_log_hides_its_state():
    folded = Carried("id", 9, 3, "3", "form", 9)
    assert former_version(Version("4", {**NODES, "4": Node("3", folded)}, None)) is None


def test_the_position_of_a_table_is_not_known_before_it_is_taken_over_and_after_a_rollback_to_then():
    kept = Kept("3", Position(5, 9, "form", clean=False))
    assert position_of("3", NODES) is None
    assert position_of("3", NODES, kept) == kept.position
    assert position_of("2", NODES, kept) is None


def test_folds_begin_before_the_last_change_of_the_partition_that_is_behind():
    state = State(commit_lsn=90, partitions={0: Place(90, 2, 1, 7), 1: Place(40, 1, 1, 3)})
    found = begin(state, "form")
    ends = {0: 8, 1: 4}
    assert found == Position(39, 90, "form", clean=False, ends=ends, is_former=True, state=state.to_json())
    assert Kept.from_json(Kept("3", found).to_json()) == Kept("3", found)


def test_folds_of_a_table_without_a_change_begin_at_the_start_of_the_log():
    begun = Position(form="form", clean=False, is_former=True, state=State().to_json())
    assert begin(State(), "form") == begun

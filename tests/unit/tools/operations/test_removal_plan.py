from dataclasses import replace

import pytest

from cdcd.adapters.postgres.pipeline_state import Instance
from cdcd.core.engine.checkpoint import Seal
from cdcd.core.errors import CdcdError, FencedError, PositionError, SourceError
from cdcd.tools.operations.removal import pipeline_of
from cdcd.tools.operations.removal_plan import (
    Command,
    PipelineRemains,
    RemovalPlan,
    RemovedPipeline,
    decide,
    lines,
)
from tests.unit.config.test_loading import parse
from tests.unit.tools.operations.test_pipeline_status import CHECKPOINT, DOWN, SERVER, SLOT, UNREAD

PIPELINE = RemovedPipeline(
    name="shop",
    file="cdcd.yaml",
    slot="cdcd_shop",
    publication="cdcd_shop",
    transactional_id="cdcd-shop",
    prefix="shop",
    checkpoint_topic="shop.checkpoint",
    own_topics=("shop.message", "shop.schemas"),
    creates_topics=True,
    reads_tables=True,
)
TOPICS = {"shop.checkpoint": 9, "shop.schemas": 2, "shop.message": 0, "shop.public.orders": 1200}
FOUND = PipelineRemains(
    DOWN,
    CHECKPOINT.system_identifier,
    CHECKPOINT,
    TOPICS,
    frozenset({"shop.public.orders", "shop.public.items"}),
)
FORMER = replace(FOUND, system_identifier="6")
"""The server that the pipeline read before the handover to the one of the checkpoint."""
SEALED = replace(CHECKPOINT, seal=Seal(0x1000, "8", 0x9000, "pg_1", 0, "token"))
STANDBY = Instance(12, "shop lock", "10.0.0.6", None)


def plan(
    command: Command,
    found: PipelineRemains = FOUND,
    pipeline: RemovedPipeline = PIPELINE,
    *,
    with_topics: bool = False,
) -> RemovalPlan:
    return decide(command, pipeline, found, with_topics=with_topics)


def steps(planned: RemovalPlan) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(step.kind, step.frees, step.topics) for step in planned.steps]


def left(planned: RemovalPlan) -> str:
    return "\n".join(f"{each.what}: {each.why}" for each in planned.left)


def test_the_durable_log_goes_with_the_checkpoint():
    planned = plan("reset", replace(FOUND, log="/log", log_bytes=5_000_000))
    assert [step.kind for step in planned.steps][:3] == ["slot", "checkpoint", "log"]
    assert "the durable log in /log" in planned.steps[2].what
    elsewhere = plan("drop", replace(FORMER, log="/log", log_bytes=5_000_000))
    assert "log" not in {step.kind for step in elsewhere.steps}
    assert "the durable log in /log" in left(elsewhere)


def test_a_drop_frees_the_wal_first_and_forgets_the_publication_last():
    assert steps(plan("drop")) == [
        ("slot", "3 MB of WAL", ()),
        ("checkpoint", "delivered up to 0/1000", ()),
        ("topics", "about 9 records", ("shop.checkpoint",)),
        ("publication", "2 tables", ()),
    ]
    assert "topics shop.public.orders, shop.message, shop.schemas: consumers may still read them" in left(
        plan("drop")
    )


def test_a_reset_keeps_the_publication_and_the_topics():
    reset = plan("reset")
    assert [kind for kind, _, _ in steps(reset)] == ["slot", "checkpoint"]
    assert "publication cdcd_shop: the pipeline goes on with it" in left(reset)
    assert "the rows come again into the same topics; --topics deletes them" in left(reset)
    assert "reads all tables again" in reset.notes[0]


def test_a_reset_of_a_pipeline_that_reads_no_tables_says_what_is_lost():
    assert (
        "this pipeline loses the changes"
        in plan("reset", pipeline=replace(PIPELINE, reads_tables=False)).notes[0]
    )


@pytest.mark.parametrize("command", ["drop", "reset"])
def test_topics_are_deleted_when_asked_for_and_those_that_tell_of_the_others_come_last(command):
    deleted = [topics for kind, _, topics in steps(plan(command, with_topics=True)) if kind == "topics"]
    assert deleted[:2] == [("shop.public.orders",), ("shop.message", "shop.schemas")]
    assert deleted[2:] == ([("shop.checkpoint",)] if command == "drop" else [])


def test_topics_of_others_with_the_same_prefix_are_left():
    others = {f"shop.other.t{number}": 1 for number in range(7)}
    planned = plan("drop", replace(FOUND, topics={**TOPICS, **others}), with_topics=True)
    assert not any("other" in topic for _, _, topics in steps(planned) for topic in topics)
    assert "and 2 more: it is not known whether pipeline shop writes to them" in left(planned)


def test_topics_that_another_pipeline_writes_to_are_left_with_the_topics_that_both_have():
    others = {"shop.public.orders": frozenset({"billing"})}
    planned = plan("drop", replace(FOUND, others=others), with_topics=True)
    deleted = {topic for step in planned.steps for topic in step.topics}
    assert deleted == {"shop.checkpoint"}
    assert "topics shop.public.orders, shop.message, shop.schemas: pipeline billing writes to them" in left(
        planned
    )


def test_topics_that_cdcd_may_not_create_are_the_operators():
    planned = plan("drop", pipeline=replace(PIPELINE, creates_topics=False), with_topics=True)
    assert [kind for kind, _, _ in steps(planned)] == ["slot", "checkpoint", "publication"]
    assert "shop.checkpoint: topics.create.enabled is false" in left(planned)


def test_a_publication_of_somebody_else_is_left_and_the_command_for_it_named():
    server = replace(DOWN, publication_is_ours=False)
    planned = plan("drop", replace(FOUND, server=server))
    assert "publication" not in [kind for kind, _, _ in steps(planned)]
    assert 'DROP PUBLICATION "cdcd_shop";' in left(planned)


def test_a_publication_that_belongs_to_another_role_is_left_before_anything_is_done():
    planned = plan("drop", replace(FOUND, server=replace(DOWN, publication_owner="dba")))
    assert [kind for kind, _, _ in steps(planned)] == ["slot", "checkpoint", "topics"]
    assert "it belongs to role dba. As that role or a superuser: DROP PUBLICATION" in left(planned)


@pytest.mark.parametrize("with_topics", [False, True])
def test_topics_that_this_principal_may_not_delete_are_left_and_the_rest_goes(with_topics: bool):
    kept = frozenset({"shop.checkpoint", "shop.schemas"})
    planned = plan("drop", replace(FOUND, kept=kept), with_topics=with_topics)
    deleted = [topic for step in planned.steps for topic in step.topics]
    assert deleted == (["shop.public.orders", "shop.message"] if with_topics else [])
    assert [step.kind for step in planned.steps if step.kind != "topics"] == [
        "slot",
        "checkpoint",
        "publication",
    ]
    assert "this principal may not delete them" in left(planned)
    assert "--delete --topic shop." in left(planned)
    # A reset deletes no checkpoint topic.
    assert ("may not delete" in left(plan("reset", replace(FOUND, kept=kept)))) is False


@pytest.mark.parametrize(
    ("slot", "checkpoint", "dropped"),
    [
        (UNREAD, CHECKPOINT, True),
        (UNREAD, None, True),
        (replace(UNREAD, name="debezium"), CHECKPOINT, True),
        (replace(UNREAD, name="debezium"), None, False),
        (replace(UNREAD, plugin="test_decoding"), CHECKPOINT, False),
        (replace(UNREAD, plugin="", database=""), CHECKPOINT, False),
        (replace(UNREAD, database="bank"), CHECKPOINT, False),
        (None, CHECKPOINT, False),
    ],
)
def test_a_slot_is_dropped_if_its_name_or_the_checkpoint_says_that_it_is_ours(slot, checkpoint, dropped):
    planned = plan("drop", replace(FOUND, server=replace(DOWN, slot=slot), checkpoint=checkpoint))
    assert ("slot" in [kind for kind, _, _ in steps(planned)]) == dropped
    if slot is not None:
        assert (f"slot {slot.name}" in left(planned)) != dropped


@pytest.mark.parametrize(
    ("slot", "why"),
    [
        (replace(UNREAD, plugin="test_decoding"), "it uses test_decoding"),
        (replace(UNREAD, plugin="", database=""), "it is a physical slot"),
        (replace(UNREAD, database="bank"), "it is of database bank"),
    ],
)
def test_a_slot_that_is_left_is_left_for_a_reason(slot, why):
    assert f"{why}, so cdcd did not create it" in left(
        plan("drop", replace(FOUND, server=replace(DOWN, slot=slot)))
    )


def test_a_checkpoint_that_cannot_be_read_is_taken_back_too():
    found = replace(FOUND, checkpoint=PositionError("not one of ours"))
    assert ("checkpoint", "a record that cannot be read", ()) in steps(plan("reset", found))


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        (DOWN, None),
        (replace(DOWN, slot=None), None),
        (SERVER, FencedError),
        (replace(SERVER, slot=UNREAD), FencedError),
        (replace(DOWN, slot=replace(SLOT, plugin="", confirmed_flush_lsn=None)), SourceError),
        (replace(DOWN, slot=replace(SLOT, plugin="", database="")), None),
        (replace(SERVER, active=None, slot_reader="other"), SourceError),
        (replace(DOWN, standbys=(STANDBY,)), FencedError),
    ],
)
def test_nothing_is_taken_away_from_under_a_program_that_runs(server, kind: type[CdcdError] | None):
    refusal = plan("drop", replace(FOUND, server=server)).refusal
    assert (refusal is None) if kind is None else isinstance(refusal, kind)


@pytest.mark.parametrize("with_topics", [False, True])
def test_a_drop_on_a_former_server_leaves_what_the_pipeline_goes_on_with(with_topics: bool):
    planned = plan("drop", FORMER, with_topics=with_topics)
    assert planned.refusal is None
    assert [kind for kind, _, _ in steps(planned)] == ["slot", "publication"]
    assert (
        "the checkpoint in topic shop.checkpoint: it belongs to the server with system_identifier 7"
        in left(planned)
    )
    assert "--checkpoint-of 7" in left(planned)
    assert (
        "shop.public.orders, shop.message, shop.schemas: the pipeline continues with them on server 7"
        in left(planned)
    )
    assert "transactional id" not in left(planned)


def test_a_slot_with_a_name_of_its_own_is_not_known_by_the_checkpoint_of_another_server():
    server = replace(DOWN, slot=replace(UNREAD, name="debezium"))
    planned = plan("drop", replace(FORMER, server=server))
    assert "slot" not in [kind for kind, _, _ in steps(planned)]
    assert "the checkpoint is of server 7" in left(planned)
    assert "SELECT pg_drop_replication_slot('debezium');" in left(planned)


def test_a_reset_on_a_server_that_the_pipeline_does_not_read_is_refused_by_name():
    refused = plan("reset", FORMER).refusal
    assert isinstance(refused, PositionError)
    assert "its checkpoint is of system_identifier 7, this server's is 6" in refused.message
    assert "--checkpoint-of 7" in refused.hint


@pytest.mark.parametrize("command", ["drop", "reset"])
@pytest.mark.parametrize("system_identifier", ["7", "8"], ids=["former", "new"])
def test_nothing_is_taken_away_while_a_handover_is_under_way(command: Command, system_identifier: str):
    sealed = replace(FOUND, checkpoint=SEALED, system_identifier=system_identifier)
    refused = plan(command, sealed).refusal
    assert isinstance(refused, PositionError)
    assert "sealed" in refused.message
    assert "cdcd handover cancel" in refused.hint
    assert "--checkpoint-of 7" in refused.hint


@pytest.mark.parametrize("command", ["drop", "reset"])
@pytest.mark.parametrize("found", [FORMER, replace(FORMER, checkpoint=SEALED)], ids=["adopted", "sealed"])
def test_the_checkpoint_of_a_server_that_is_named_as_gone_is_taken_away(
    command: Command, found: PipelineRemains
):
    planned = plan(command, found, replace(PIPELINE, checkpoint_of="7"))
    assert planned.refusal is None
    assert [kind for kind, _, _ in steps(planned)][:2] == ["slot", "checkpoint"]
    other = plan(command, found, replace(PIPELINE, checkpoint_of="9"))
    assert "checkpoint" not in [kind for kind, _, _ in steps(other)]


def test_where_nothing_is_left_the_command_says_so():
    nothing = PipelineRemains(replace(DOWN, slot=None, publication=None), "7", None, {}, frozenset())
    planned = plan("drop", nothing)
    assert (planned.steps, planned.notes) == ((), ())
    assert next(lines(planned, 80)) == "There is nothing of pipeline shop to drop."


@pytest.mark.parametrize("command", ["drop", "reset"])
def test_eighty_columns_are_enough(command):
    shown = list(lines(plan(command, with_topics=True), 80))
    assert max(map(len, shown)) <= 80
    assert "  - slot cdcd_shop (3 MB of WAL)" in shown


@pytest.mark.parametrize(
    ("topic", "is_own"),
    [("__debezium-heartbeat.shop", True), ("shop.beats", True), ("all_heartbeats", False)],
)
def test_a_topic_of_heartbeats_is_the_pipelines_own_if_it_has_its_prefix(topic: str, is_own: bool):
    config = parse(f"heartbeat: {{interval_s: 5}}\ntopics: {{heartbeat: {topic}}}\n")
    pipeline = pipeline_of(config, "cdcd.yaml", "")
    assert (topic in pipeline.own_topics) == is_own
    assert "shop.message" in pipeline.own_topics
    assert "shop.checkpoint" not in pipeline.own_topics


CLAIMED = replace(
    FOUND,
    topics={**TOPICS, "orders": 5, "lines": 7},
    written=frozenset({"shop.public.orders", "orders"}),
    claims=("orders",),
    claimed_by={"lines": "stock"},
)


def test_a_drop_releases_its_own_claims_and_deletes_only_claimed_topics():
    planned = plan("drop", CLAIMED, with_topics=True)
    assert [(kind, topics) for kind, _, topics in steps(planned)][2:] == [
        ("topics", ("orders", "shop.public.orders")),
        ("topics", ("shop.message", "shop.schemas")),
        ("topics", ("shop.checkpoint",)),
        ("claims", ("orders",)),
        ("publication", ()),
    ]
    assert "topic lines: pipeline stock has claimed it" in left(planned)


def test_a_reset_and_a_pipeline_that_goes_on_elsewhere_keep_their_claims():
    assert "claims" not in {kind for kind, _, _ in steps(plan("reset", CLAIMED, with_topics=True))}
    assert "claims" not in {
        kind for kind, _, _ in steps(plan("drop", replace(CLAIMED, system_identifier="6")))
    }

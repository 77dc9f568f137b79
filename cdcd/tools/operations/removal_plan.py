"""What `cdcd drop` and `cdcd reset` remove, what they leave, and why.

This module decides, and `removal.py` carries out.

The rule: objects that cdcd did not create are left and named. A publication that cdcd created has a comment that
says so. A slot has no comment: it is cdcd's if it has the default name, or if a checkpoint in Kafka shows that this
pipeline has delivered from it. A topic is cdcd's if the topic of descriptions names cdcd as its writer, or if it
receives a published table's records; with `topics.create.enabled: false` every topic is the operator's.

A checkpoint and topics belong to the server that the checkpoint names. After a handover this is not the server of
the former configuration, so `cdcd drop` removes only what the pipeline left on that server, and `cdcd reset`
refuses.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from cdcd.adapters.postgres.pipeline_state import PipelineState
from cdcd.adapters.postgres.slot import PLUGIN
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.resuming import refuse_other_server, refuse_sealed
from cdcd.core.errors import CdcdError, FencedError, PositionError, SourceError
from cdcd.telemetry.terminal_text import number, plain, size

Command = Literal["drop", "reset"]
Kind = Literal["slot", "checkpoint", "log", "topics", "claims", "publication"]

NAMED_MAX: Final = 5
"""Maximum number of other owners' topics that are named; the rest are counted."""


@dataclass(frozen=True, slots=True)
class RemovedPipeline:
    """The pipeline's configuration.

    Attributes:
        transactional_id: id of its Kafka transactions; None: it uses none.
        own_topics: cdcd's own topics except the checkpoint topic.
        creates_topics: `topics.create.enabled`.
        reads_tables: True if a new pipeline begins with the existing rows.
        checkpoint_of: the system_identifier of a server that is abandoned. A checkpoint of that server, also a
            sealed one, is removed like one of this server; "": there is no such server.
    """

    name: str
    file: str
    slot: str
    publication: str
    transactional_id: str | None
    prefix: str
    checkpoint_topic: str
    own_topics: tuple[str, ...]
    creates_topics: bool
    reads_tables: bool
    checkpoint_of: str = ""


@dataclass(frozen=True, slots=True)
class PipelineRemains:
    """The existing objects of the pipeline.

    Attributes:
        system_identifier: identifier of the server that answered.
        checkpoint: the checkpoint; PositionError: its record is unreadable; None: there is none.
        topics: topics with the prefix, and cdcd's own topics, each with the number of its offsets.
        written: topics among these to which tables of this pipeline are written.
        log: folder of the durable log on this machine; "": there is none.
        log_bytes: size of the durable log in bytes.
        others: topics to which other pipelines write by the topic of descriptions, with these pipelines' names.
        kept: topics that this principal may not delete.
        claims: topics that this pipeline claims in the topic with the claims, by name.
        claimed_by: topics that other pipelines have claimed, with these pipelines' names.
    """

    server: PipelineState
    system_identifier: str
    checkpoint: Checkpoint | PositionError | None
    topics: Mapping[str, int]
    written: frozenset[str]
    log: str = ""
    log_bytes: int = 0
    others: Mapping[str, frozenset[str]] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    claims: tuple[str, ...] = ()
    claimed_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RemovalStep:
    """An object to remove, described in words; `topics` if the kind is topics."""

    kind: Kind
    what: str
    frees: str
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """An object that stays, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """Steps in the order in which they are carried out. `refusal`: error if the plan must not be carried out now."""

    command: Command
    pipeline: RemovedPipeline
    steps: tuple[RemovalStep, ...]
    left: tuple[Left, ...]
    notes: tuple[str, ...]
    refusal: CdcdError | None


def decide(
    command: Command, pipeline: RemovedPipeline, found: PipelineRemains, *, with_topics: bool
) -> RemovalPlan:
    """Return the plan of `command`.

    The slot is first, because it keeps WAL. If a later step fails, the next start refuses to continue, and the
    command can be repeated. The publication is last, because it determines the pipeline's topics.

    Args:
        with_topics: True to remove the topics of tables and cdcd's own topics, too.
    """
    elsewhere = _reads_elsewhere(pipeline, found)
    decided = [
        *_slot(pipeline, found, elsewhere),
        *_checkpoint(pipeline, found, elsewhere),
        *_log(found, elsewhere),
        *_topics(command, pipeline, found, with_topics, elsewhere),
        *_claims(command, found, elsewhere),
        *_publication(command, found),
    ]
    steps = tuple(each for each in decided if isinstance(each, RemovalStep))
    left = [each for each in decided if isinstance(each, Left)]
    if pipeline.transactional_id is not None and not elsewhere:
        left.append(
            Left(
                f"transactional id {pipeline.transactional_id}",
                "Kafka removes it by itself when it has not been used for transactional.id.expiration.ms (7 days)",
            )
        )
    if command == "drop":
        left.append(Left("the role and its rights, ACLs in Kafka", "cdcd did not make them"))
    notes = _notes(command, pipeline, with_topics) if steps else ()
    why = refusal(found.server) or _refusal_by_checkpoint(command, pipeline, found)
    return RemovalPlan(command, pipeline, steps, tuple(left), notes, why)


def _reads_elsewhere(pipeline: RemovedPipeline, found: PipelineRemains) -> str:
    """Return the system_identifier of another server that the pipeline reads; "" for this server or none."""
    checkpoint = found.checkpoint
    if not isinstance(checkpoint, Checkpoint):
        return ""
    of = checkpoint.system_identifier
    return "" if of in {found.system_identifier, pipeline.checkpoint_of} else of


def _refusal_by_checkpoint(
    command: Command, pipeline: RemovedPipeline, found: PipelineRemains
) -> CdcdError | None:
    """Return the error if the checkpoint forbids the removal: a handover is under way, or another server is read."""
    checkpoint = found.checkpoint
    if not isinstance(checkpoint, Checkpoint) or checkpoint.system_identifier == pipeline.checkpoint_of:
        return None
    try:
        refuse_sealed(checkpoint)
        if command == "reset":
            refuse_other_server(checkpoint, found.system_identifier)
    except PositionError as error:
        return PositionError(
            error.message,
            hint=f"{error.hint} If that server is gone for good, or the handover is cancelled: run this command with "
            f"--checkpoint-of {checkpoint.system_identifier}.",
        )
    return None


def refusal(server: PipelineState) -> CdcdError | None:
    """Return the error if nothing may be removed now, because an instance or another program is active."""
    active, slot = server.active, server.slot
    if active is not None:
        where = f" from {active.client}" if active.client else ""
        return FencedError(
            f"An instance of the pipeline is active ({active.application_name}{where}, server process {active.pid}).",
            hint="Stop all instances of the pipeline first, also standbys, then run the command again.",
        )
    # While a logical slot is being created, it has no plugin yet.
    if slot is not None and slot.active and not slot.is_physical and slot.plugin in (PLUGIN, ""):
        reader = server.slot_reader or "a session that this role cannot see"
        return SourceError(
            f"Slot {slot.name} is being read by {reader} (server process {slot.active_pid}).",
            hint="Stop that program first, then run the command again.",
        )
    if server.standbys:
        return FencedError(
            f"{number(len(server.standbys), 'instance')} of the pipeline would take over.",
            hint="Stop all instances of the pipeline first, then run the command again.",
        )
    return None


def _slot(pipeline: RemovedPipeline, found: PipelineRemains, elsewhere: str) -> Iterator[RemovalStep | Left]:
    slot = found.server.slot
    if slot is None:
        return
    if slot.plugin != PLUGIN or slot.database != found.server.database:
        if slot.is_physical:
            of = "is a physical slot"
        elif slot.plugin != PLUGIN:
            of = f"uses {slot.plugin}"
        else:
            of = f"is of database {slot.database}"
        yield Left(f"slot {slot.name}", f"it {of}, so cdcd did not create it")
    elif slot.name == f"cdcd_{pipeline.name}" or (found.checkpoint is not None and not elsewhere):
        yield RemovalStep("slot", f"slot {slot.name}", f"{size(slot.retained_bytes)} of WAL")
    else:
        yield Left(
            f"slot {slot.name}, which keeps {size(slot.retained_bytes)} of WAL",
            f"{f'the checkpoint is of server {elsewhere}' if elsewhere else 'cdcd has delivered nothing from it'}, so "
            "that it may be another program's. If it is not: "
            f"SELECT pg_drop_replication_slot('{slot.name}');",
        )


def _checkpoint(
    pipeline: RemovedPipeline, found: PipelineRemains, elsewhere: str
) -> Iterator[RemovalStep | Left]:
    topic = pipeline.checkpoint_topic
    if elsewhere:
        yield Left(
            f"the checkpoint in topic {topic}",
            f"it belongs to the server with system_identifier {elsewhere}, which the pipeline reads, not to this "
            f"server ({found.system_identifier}). Give --config the configuration of that server to remove it. If that "
            f"server is gone for good: --checkpoint-of {elsewhere}",
        )
        return
    if isinstance(found.checkpoint, PositionError):
        yield RemovalStep("checkpoint", f"the checkpoint in topic {topic}", "a record that cannot be read")
    elif found.checkpoint is not None:
        yield RemovalStep(
            "checkpoint", f"the checkpoint in topic {topic}", f"delivered up to {found.checkpoint.position}"
        )


def _log(found: PipelineRemains, elsewhere: str) -> Iterator[RemovalStep | Left]:
    """Decide on the durable log on this machine. Without its slot and checkpoint, no process can deliver from it."""
    if not found.log_bytes:
        return
    what = f"the durable log in {found.log}"
    if elsewhere:
        yield Left(what, f"the pipeline continues on server {elsewhere}")
    else:
        yield RemovalStep("log", what, f"{size(found.log_bytes)} of changes")


def _topics(
    command: Command, pipeline: RemovedPipeline, found: PipelineRemains, with_topics: bool, elsewhere: str
) -> Iterator[RemovalStep | Left]:
    own = [topic for topic in pipeline.own_topics if topic in found.topics]
    written = sorted(topic for topic in found.written if topic in found.topics and topic not in found.others)
    shared = sorted(topic for topic in found.others if topic in found.topics)
    if shared:
        # The pipelines share the topic of descriptions, and so the prefix.
        names = ", ".join(sorted(frozenset[str]().union(*found.others.values())))
        yield Left(_named("topic", [*shared, *own]), f"pipeline {names} writes to them")
        own = []
    checkpoint = [pipeline.checkpoint_topic] if pipeline.checkpoint_topic in found.topics else []
    for holder in sorted(set(found.claimed_by.values())):
        theirs = [topic for topic, each in sorted(found.claimed_by.items()) if each == holder]
        yield Left(_named("topic", theirs), f"pipeline {plain(holder)} has claimed it")
    others = sorted(
        set(found.topics) - {*own, *written, *checkpoint, *shared, *pipeline.own_topics, *found.claimed_by}
    )
    ours = [*written, *own]
    if elsewhere:
        if ours:
            yield Left(_named("topic", ours), f"the pipeline continues with them on server {elsewhere}")
    elif not pipeline.creates_topics:
        if ours or checkpoint:
            yield Left(
                _named("topic", [*ours, *checkpoint]),
                "topics.create.enabled is false, so cdcd did not create them",
            )
    else:
        removed = [*(ours if with_topics else ()), *(checkpoint if command == "drop" else ())]
        kept = [topic for topic in removed if topic in found.kept]
        if kept:
            yield Left(
                _named("topic", kept),
                "this principal may not delete them. Let somebody who may delete them do so: "
                f"kafka-topics --bootstrap-server <bootstrap> --delete --topic {kept[0]}"
                + (f" (and {len(kept) - 1} more)" if len(kept) > 1 else ""),
            )
        written = [topic for topic in written if topic not in found.kept]
        own = [topic for topic in own if topic not in found.kept]
        if with_topics:
            # The topic of descriptions is last, because it determines the pipeline's topics.
            for topics in (written, own):
                if topics:
                    count = sum(found.topics[topic] for topic in topics)
                    yield RemovalStep(
                        "topics", _named("topic", topics), f"about {number(count, 'record')}", tuple(topics)
                    )
        elif ours:
            why = (
                "consumers may still read them"
                if command == "drop"
                else "the rows come again into the same topics"
            )
            yield Left(_named("topic", ours), f"{why}; --topics deletes them")
        if command == "drop" and checkpoint and checkpoint[0] not in found.kept:
            count = found.topics[pipeline.checkpoint_topic]
            yield RemovalStep(
                "topics",
                f"topic {checkpoint[0]}",
                f"about {number(count, 'record')}",
                (pipeline.checkpoint_topic,),
            )
    if others:
        yield Left(
            _named("topic", others), f"it is not known whether pipeline {pipeline.name} writes to them"
        )


def _claims(command: Command, found: PipelineRemains, elsewhere: str) -> Iterator[RemovalStep | Left]:
    if found.claims and command == "drop" and not elsewhere:
        yield RemovalStep(
            "claims",
            f"the claim{'' if len(found.claims) == 1 else 's'} on {_named('topic', found.claims)}",
            "another pipeline may then claim them",
            found.claims,
        )


def _publication(command: Command, found: PipelineRemains) -> Iterator[RemovalStep | Left]:
    publication = found.server.publication
    if publication is None:
        return
    what = f"publication {publication.name}"
    if command == "reset":
        yield Left(what, "the pipeline goes on with it")
        return
    owner, quoted = found.server.publication_owner, publication.name.replace('"', '""')
    if not found.server.publication_is_ours:
        yield Left(
            what, f'it is not known whether cdcd created it. If nobody needs it: DROP PUBLICATION "{quoted}";'
        )
    elif owner:
        yield Left(
            what,
            f'it belongs to role {plain(owner)}. As that role or a superuser: DROP PUBLICATION "{quoted}";',
        )
    else:
        yield RemovalStep("publication", what, number(len(publication.tables), "table"))


def _notes(command: Command, pipeline: RemovedPipeline, with_topics: bool) -> tuple[str, ...]:
    if command == "drop":
        return ("Changes that are not delivered yet are lost to this pipeline.",)
    again = (
        "The next start creates a new slot and reads all tables again (op r)."
        if pipeline.reads_tables
        else "The next start creates a new slot and streams from its position. snapshot.mode is never, so this "
        "pipeline loses the changes before that."
    )
    deleted = (
        "Consumers, and mirrors (cdcd mirror --snapshot), must start from scratch with the new topics."
        if with_topics
        else "Rows that are deleted before the next start have no record: consumers that keep state, also mirrors, "
        "keep such rows. Delete the topics too (--topics), or clear the state of the consumers."
    )
    return again, deleted


def _named(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{what}{'' if len(names) == 1 else 's'} {', '.join(names[:NAMED_MAX])}{more}"


def lines(plan: RemovalPlan, width: int) -> Iterator[str]:
    """Return the plan for people, in lines of at most `width` columns."""
    name = plan.pipeline.name
    if plan.steps:
        yield f"`cdcd {plan.command}` of pipeline {name} removes, in this order:"
        for step in plan.steps:
            yield from _item(f"{step.what} ({step.frees})", width)
    else:
        yield f"There is nothing of pipeline {name} to {plan.command}."
    if plan.left:
        yield "It leaves:"
        for left in plan.left:
            yield from _item(f"{left.what}: {left.why}", width)
    for note in plan.notes:
        yield from textwrap.wrap(note, width, break_long_words=False, break_on_hyphens=False)


def _item(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        plain(text),
        max(width, 40),
        initial_indent="  - ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )

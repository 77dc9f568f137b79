"""`cdcd tables`, over states of pipelines that are made up."""

from dataclasses import replace

import pytest

from cdcd.adapters.postgres.publication import Publication
from cdcd.core.catalog.oids import Oids
from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.snapshot.outcomes import Outcome
from cdcd.core.snapshot.progress import Progress
from cdcd.tools.operations.pipeline_problems import ASIDE, FOUND, problems_of
from cdcd.tools.operations.pipeline_problems import exit_code_of as exit_code_of_status
from cdcd.tools.operations.pipeline_status import PipelineStatus
from cdcd.tools.operations.table_list import TABLES_MAX, exit_code_of, table_lines, tables_object
from tests.unit.tools.operations.test_pipeline_status import (
    AWAY,
    CHECKPOINT,
    DOWN,
    PUBLICATION,
    SERVER,
    WELL,
    table,
)


def published(count: int) -> Publication:
    return replace(PUBLICATION, tables=tuple(table(oid, f"t{oid}") for oid in range(1, count + 1)))


def with_aside(*aside: AsideTable, count: int = 2) -> PipelineStatus:
    """A pipeline in which these tables are set aside."""
    return replace(
        WELL,
        server=replace(SERVER, publication=published(count)),
        checkpoint=replace(CHECKPOINT, tables=aside),
    )


def test_each_table_has_state_position_lag_rows_and_changes():
    status = replace(WELL, checkpoint=replace(CHECKPOINT, snapshot=Progress()))
    first, second = tables_object(status)["tables"]
    assert first == {
        "table": "public.items",
        "state": "published",
        "position": "0/1000",
        "rows_read": None,
        "changes": None,
        "share": None,
        "lag_bytes": 0,
        "error": None,
        "command": None,
    }
    assert (second["table"], second["changes"]) == ("public.orders", 1234)
    assert exit_code_of(status) == 0


def test_a_table_that_is_set_aside_comes_first_with_its_reason_and_the_command_that_helps():
    status = with_aside(AsideTable(2, 0x400, "size"))
    first, second = tables_object(status)["tables"]
    assert first["table"] == "public.t2"
    assert (first["state"], first["position"], first["lag_bytes"]) == ("set aside", "0/400", 0x1000)
    assert first["error"] == "a record is larger than Kafka takes"
    assert first["command"] == "cdcd tables resume public.t2 --config cdcd.yaml"
    assert second["state"] == "published"
    assert exit_code_of(status) == ASIDE
    text = "\n".join(table_lines(status, 120))
    assert "set aside" in text
    assert "cdcd tables resume public.t2 --config cdcd.yaml" in text


def test_a_table_that_is_set_aside_and_not_published_any_more_has_no_command():
    status = with_aside(AsideTable(9, 0x400, "size"))
    first, _, _ = tables_object(status)["tables"]
    assert (first["table"], first["state"], first["command"]) == ("oid 9", "set aside", None)
    assert "a running daemon forgets it within seconds" in first["error"]
    (problem,) = problems_of(status)
    assert problem.hint == "cdcd tables --config cdcd.yaml shows each table."


def test_status_has_a_problem_and_an_exit_code_of_its_own_for_them():
    status = with_aside(AsideTable(1, 0x400, "topic"))
    (problem,) = problems_of(status)
    assert (problem.code, problem.level) == ("table.set_aside", "error")
    assert "public.t1 (its topic is missing or refused)" in problem.message
    assert "cdcd tables resume public.t1 --config cdcd.yaml" in problem.hint
    assert exit_code_of_status(status) == ASIDE
    # What is wrong with the whole pipeline comes first.
    assert exit_code_of_status(replace(status, server=DOWN)) == FOUND


def test_many_tables_that_are_set_aside_are_one_problem():
    status = with_aside(*[AsideTable(oid, 0x400, "registry") for oid in range(1, 301)], count=300)
    (problem,) = problems_of(status)
    assert problem.message.startswith("300 tables are set aside")
    assert "and 295 more" in problem.message
    assert len(problem.message) < 600


def test_of_300_tables_some_are_shown_and_the_number_of_the_others():
    status = with_aside(AsideTable(299, 0x400, "value"), count=300)
    text = list(table_lines(status, 100))
    assert text[-1] == f"and {300 - TABLES_MAX} tables more; --all shows them"
    assert any(line.startswith("public.t299 ") for line in text[:3])
    assert len(list(table_lines(status, 100, all_tables=True))) > 300


@pytest.mark.parametrize(
    ("progress", "state", "command"),
    [
        (
            replace(Progress(), outcomes=(Outcome("public.orders", "", 0, "permission denied"),)),
            "failed",
            "cdcd snapshot start --table public.orders --config cdcd.yaml",
        ),
        (
            replace(Progress(), waiting=Oids((1,)), paused=True),
            "waiting",
            "cdcd snapshot resume --config cdcd.yaml",
        ),
        (replace(Progress(), waiting=Oids((1,))), "waiting", None),
    ],
)
def test_a_table_whose_rows_are_not_read_has_the_command_that_reads_them(
    progress: Progress, state: str, command: str | None
):
    status = replace(WELL, checkpoint=replace(CHECKPOINT, snapshot=progress))
    (found,) = [each for each in tables_object(status)["tables"] if each["table"] == "public.orders"]
    assert (found["state"], found["command"]) == (state, command)


def test_a_table_that_is_gone_from_the_publication_is_named_by_its_oid():
    status = with_aside(AsideTable(77, 0x400, "rule"))
    assert tables_object(status)["tables"][0]["table"] == "oid 77"


def test_a_side_that_does_not_answer_is_told_and_its_code_is_the_exit_code():
    status = replace(WELL, server=AWAY)
    assert exit_code_of(status) == 3
    assert "ERROR postgres.away" in next(table_lines(status, 100))
    assert tables_object(status)["problems"][0]["code"] == "postgres.away"
    # A pipeline that does not run still has its tables, and their states.
    assert exit_code_of(replace(WELL, server=DOWN)) == 0


def test_names_of_strangers_are_quoted_for_the_shell():
    name = 'x"; $(id)'
    status = replace(
        with_aside(AsideTable(1, 0x400, "name")),
        server=replace(SERVER, publication=replace(PUBLICATION, tables=(table(1, name),))),
    )
    command = tables_object(status)["tables"][0]["command"]
    assert command == """cdcd tables resume 'public."x""; $(id)"' --config cdcd.yaml"""

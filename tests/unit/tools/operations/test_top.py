import pytest
from rich.cells import cell_len

from cdcd.telemetry.state import Telemetry
from cdcd.tools.operations.top import SORTS, DaemonAnswer, lines, text_lines
from tests.unit.telemetry.status_examples import HOSTILE, busy, status_of

URL = "http://127.0.0.1:9464"


def shown(answer: DaemonAnswer, columns: int = 100, rows: int = 40, sort: str = "r") -> str:
    return "\n".join(line.text for line in lines(answer, "cdcd.yaml", columns, rows, sort))


def many(tables: int = 500) -> Telemetry:
    telemetry = busy()
    telemetry.events = {(f"public.t{number}", "c"): number for number in range(tables)}
    return telemetry


def test_the_screen_has_what_an_operator_looks_for():
    text = shown(DaemonAnswer(URL, status_of(busy())))
    for part in (
        "shop: waits for Kafka; nothing is lost", "role      active", "lag       30 s, 4 kB", "Kafka has not answered",
        "Hint: connection refused", "keeps 17 MB of WAL, may be lost in 17 min", "1 prepared, the oldest for 1 min",
        "snapshot  2 tables to read", "public.orders", "q leave  sort by: [r rate]",
    ):  # fmt: skip
        assert part in text


@pytest.mark.parametrize("columns", [1, 10, 20, 40, 79, 200])
@pytest.mark.parametrize("rows", [1, 2, 5, 12, 24, 60])
@pytest.mark.parametrize("name", ["public.orders", "日本語.テーブル" * 5, HOSTILE])
def test_no_line_is_wider_than_the_screen_and_there_are_no_more_than_it_has(columns, rows, name):
    for telemetry in (busy("shop", name, name * 20), many(), Telemetry("shop", "slot")):
        found = lines(DaemonAnswer(URL, status_of(telemetry), 3.0), "cdcd.yaml", columns, rows)
        assert len(found) <= rows
        assert all(cell_len(line.text) <= columns for line in found)
        assert all(line.text.isprintable() for line in found)


def test_what_does_not_fit_is_said():
    text = shown(DaemonAnswer(URL, status_of(many(), 10_000)), rows=24)
    rows = [line for line in text.splitlines() if line.startswith("public.t")]
    assert f"and {500 - len(rows)} tables more" in text
    # The status has fewer tables than there are, and the count is still right.
    text = shown(DaemonAnswer(URL, status_of(many(), 5)), rows=60)
    assert "and 495 tables more" in text


@pytest.mark.parametrize("sort", SORTS)
def test_every_key_sorts(sort):
    text = shown(DaemonAnswer(URL, status_of(many(), 10_000)), sort=sort)
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("public.t")]
    assert rows[0] == ("public.t0" if sort == "n" or sort in "ud" else "public.t499")


def test_a_daemon_that_is_down_is_told_with_what_to_do_and_its_last_answer_stays():
    down = shown(DaemonAnswer(URL, None, 4.0))
    assert f"No daemon answers at {URL}." in down
    assert "cdcd run --config cdcd.yaml" in down
    stale = shown(DaemonAnswer(URL, status_of(busy()), 75.0))
    assert "since 1 min" in stale
    assert "The screen shows its last answer." in stale
    assert "public.orders" in stale


def test_another_pipelines_daemon_and_a_place_that_is_not_known_are_told():
    assert f"{URL} answers for another pipeline, bank." in shown(DaemonAnswer(URL, stranger="bank"))
    assert "cdcd top --url http://host:9464" in shown(DaemonAnswer(""))


def test_the_text_for_a_pipe_has_all_tables_of_the_status():
    text = list(text_lines(DaemonAnswer(URL, status_of(many(), 10_000)), "cdcd.yaml", 80))
    assert len([line for line in text if line.startswith("public.t")]) == 500
    assert "q leave" not in "\n".join(text)

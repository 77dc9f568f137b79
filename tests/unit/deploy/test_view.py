import time

from rich.console import Console

from deploy.demo.daemon import parse_metrics
from deploy.demo.topics import Raw
from deploy.demo.view import View, position, quantile, size

METRICS = """\
# HELP cdcd_lag_bytes WAL that the server has and Kafka does not.
# TYPE cdcd_lag_bytes gauge
cdcd_lag_bytes 2048.0
# TYPE cdcd_role gauge
cdcd_role{role="standby"} 0.0
cdcd_role{role="active"} 1.0
cdcd_streaming 1.0
cdcd_flushed_lsn 4.294967296e+09
# TYPE cdcd_transactions counter
cdcd_transactions_total{kind="rolled_back"} 2.0
cdcd_transactions_total{kind="plain"} 7.0
"""


def record(op: str, lsn: int) -> Raw:
    committed = int(time.time() * 1e6) - 5000
    source = f'{{"commit_lsn": {lsn}, "ts_us": {committed}}}'
    value = f'{{"op": "{op}", "source": {source}, "before": {{"id": 1}}, "after": {{"id": 1, "name": "ä"}}}}'
    return Raw("shop.public.t", 0, lsn, b"k", value.encode())


def test_metrics_are_read_by_name_and_labels() -> None:
    samples = parse_metrics(METRICS)
    assert samples["cdcd_lag_bytes"] == {(): 2048.0}
    assert samples["cdcd_role"]["active",] == 1


def test_a_line_says_all_of_it() -> None:
    view = View("shop")
    view.phase = "open"
    view.measure(parse_metrics(METRICS))
    view.take([record("c", 1), record("u", 2), Raw("shop.public.t", 0, 3, b"k", None)])
    line = view.line()
    assert line.startswith(
        "open | 1 records/s | created 1 updated 1 | daemon active, streaming, – of memory"
        " | behind 2.0 kB, –; confirmed up to 1/0"
    )
    assert "not committed 0 large transactions (streamed), 0 prepared ones" in line
    assert view.records == 3
    assert view.transactions() == "plain 7, rolled back 2"
    assert all(0.004 < latency < 5 for latency in view.latencies)


def test_the_panel_names_each_topic_and_its_last_record() -> None:
    view = View("shop")
    view.take([record("c", 1), record("d", 2)])
    console = Console(width=120)
    with console.capture() as capture:
        console.print(view)
    text = capture.get()
    assert "public.t" in text
    assert "d id=1, name=ä" in text


def test_the_panel_has_the_address_of_the_page_and_how_far_the_mirror_is() -> None:
    view = View("shop")
    view.page = "http://127.0.0.1:9464/"
    view.mirror = "downloading Spark meanwhile, 12 of 500 MB; then the mirror joins"
    console = Console(width=120)
    with console.capture() as capture:
        console.print(view)
    text = capture.get()
    assert "http://127.0.0.1:9464/" in text
    assert "12 of 500 MB" in text


def test_a_view_of_nothing_can_be_shown() -> None:
    view = View("shop")
    assert "no records" in view.line()
    assert view.transactions() == ""


def test_numbers_are_for_people() -> None:
    assert [size(n) for n in (None, 0, 999, 1500, 123_456, 5e9, 5e12)] == [
        "–", "0 B", "999 B", "1.5 kB", "123 kB", "5.0 GB", "5000 GB",
    ]  # fmt: skip
    assert position(None) == "–"
    assert position(0x1_0000_00FF) == "1/FF"
    assert quantile([], 0.5) == 0
    assert quantile([1, 2, 3, 4], 0.5) == 3
    assert quantile([1, 2, 3, 4], 0.99) == 4

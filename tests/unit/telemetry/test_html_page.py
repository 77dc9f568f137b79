import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from cdcd.telemetry.html_page import RUNBOOK, bars, html_page, runbook_page
from cdcd.telemetry.html_style import HEADERS, SCRIPT, STYLE
from cdcd.telemetry.state import ActiveElsewhere, AsideStatus, Telemetry
from deploy.local.cache import REPOSITORY
from tests.unit.telemetry.status_examples import HOSTILE, busy, status_of

VOID = {"meta", "progress", "br", "line", "rect"}
OPTIONAL = {"td", "th", "dt", "dd", "p"}


class Parsed(HTMLParser):
    """Tags and texts of a page; an end that fits no begin is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: set[str] = set()
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID | OPTIONAL:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID | OPTIONAL:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_of_nothing_and_one_of_everything_are_well_formed():
    for telemetry in (Telemetry("shop", "cdcd_shop"), busy()):
        page = Parsed(html_page(status_of(telemetry)))
        assert page.tags.count("main") == 1
        # The last hour, and lag and latency of the last day.
        assert page.tags.count("svg") == 3


def standby(name: str = "shop lock", client: str = "10.0.0.5") -> Telemetry:
    telemetry = busy()
    telemetry.role = "standby"
    telemetry.active_elsewhere = ActiveElsewhere(name, client, 77, 1_790_000_000.0)
    return telemetry


def test_the_page_of_a_standby_says_who_is_active_and_has_no_empty_numbers():
    page = Parsed(html_page(status_of(standby())))
    shown = "".join(page.texts)
    for text in (
        "Active instance",
        "10.0.0.5",
        "shop lock",
        "77",
        "2026-09-21 14:13:20",
        "reconnect.scheduled",
    ):
        assert text in shown
    assert "not known" not in shown
    assert page.tags.count("svg") == 0
    unseen = standby()
    unseen.active_elsewhere = None
    assert "It was not seen yet." in html_page(status_of(unseen))


def test_the_names_of_the_active_instance_are_text():
    plain, hostile = standby(), standby(HOSTILE, HOSTILE)
    before, after = Parsed(html_page(status_of(plain))), Parsed(html_page(status_of(hostile)))
    assert after.tags == before.tags
    assert after.attributes == before.attributes


def test_the_configuration_is_text():
    page = Parsed(html_page(status_of(busy()), f"name: shop\nquery: {HOSTILE}\n"))
    assert "name: shop\n" in "".join(page.texts)
    assert page.tags.count("script") == 1
    assert "Configuration in effect" not in html_page(status_of(busy()))


def test_warnings_have_a_link_into_the_runbook_which_has_that_section():
    runbook = (REPOSITORY / "deploy" / "runbook.md").read_text()
    page = runbook_page(runbook)
    Parsed(page)
    for section in RUNBOOK.values():
        assert f'<h2 id="{section.lower()}">' in page
    assert '<a href="/runbook#cdcdreconnecting">' in html_page(status_of(busy()))
    assert '<a href="/runbook#cdcdkafkaunreachable">' in html_page(status_of(busy()))


@pytest.mark.parametrize("event", RUNBOOK)
def test_the_events_of_the_runbook_exist(event):
    assert f"`{event}`" in (REPOSITORY / "docs" / "events.md").read_text()


def test_what_strangers_named_or_wrote_is_text_and_no_markup():
    plain, hostile = busy(), busy("shop", f"public.{HOSTILE}", HOSTILE)
    before, after = Parsed(html_page(status_of(plain))), Parsed(html_page(status_of(hostile)))
    # The same tags and attributes, whatever the names are: nothing of them became markup.
    assert after.tags == before.tags
    assert after.attributes == before.attributes
    shown = "".join(after.texts)
    assert '<script>alert("1")</script>\\u001b[31m&\'"' in shown
    assert "\x1b" not in shown


def test_the_page_names_tables_that_are_set_aside_with_the_command_that_helps():
    shown = "".join(Parsed(html_page(status_of(busy()))).texts)
    assert "2 tables set aside" in shown
    assert "cdcd tables resume public.orders2" in shown
    telemetry = busy()
    telemetry.aside = ()
    assert "set aside" not in "".join(Parsed(html_page(status_of(telemetry))).texts)
    telemetry.aside = tuple(AsideStatus(f"public.t{number}", "registry", 1) for number in range(300))
    shown = "".join(Parsed(html_page(status_of(telemetry))).texts)
    assert "300 tables set aside" in shown
    assert "and 200 tables more" in shown


def test_no_attribute_runs_a_script_or_has_a_style():
    page = Parsed(html_page(status_of(busy())))
    assert not {name for name in page.attributes if name.startswith("on")}
    assert "style" not in page.attributes


def test_the_policy_allows_the_pages_own_style_and_script_and_nothing_else():
    page = html_page(status_of(busy()))
    policy = HEADERS["Content-Security-Policy"]
    for kind, text in (("style", STYLE), ("script", SCRIPT)):
        (inline,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        assert inline == text
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not re.findall(r"""(?:src|href)=["'](?!/)""", page)


def test_the_page_shows_what_an_operator_looks_for():
    shown = "".join(Parsed(html_page(status_of(busy()))).texts)
    for text in (
        "active", "waits for Kafka; nothing is lost", "Kafka has not answered for", "Hint: connection refused",
        "public.orders", "WAL held by slot cdcd_shop", "17 MB", "may be lost in 17 min", "1 prepared", "40%",
        "reconnect.scheduled", "0/1000", "public.legacy",
    ):  # fmt: skip
        assert text in shown


@pytest.mark.parametrize("tables", [1, 5000])
def test_the_page_stays_small_and_says_how_many_tables_there_are_more(tables):
    telemetry = busy()
    telemetry.events = {(f"public.t{number}", "c"): number for number in range(tables)}
    page = html_page(status_of(telemetry))
    assert len(page) < 110_000
    assert ("The busiest 50 of 5,000 tables" in page) == (tables > 50)
    assert ('<a href="/?tables=all">' in page) == (tables > 50)


def test_the_plot_has_a_bar_for_each_minute_and_none_is_higher_than_the_plot():
    minutes = [{"at": f"2026-01-01T10:{index:02}:00+00:00", "rows": index * 7} for index in range(60)]
    found = bars(minutes, "rows", "rows")
    heights = [float(height) for height in re.findall(r'height="([0-9.]+)"><title>', found)]
    assert len(heights) == 60
    assert heights == sorted(heights)
    assert 0 < heights[1] < 2
    assert heights[-1] <= 150 - 24 - 24
    assert "at most 413 rows in a minute" in found
    assert "10:59: 413 rows" in found


def test_an_hour_of_nothing_is_a_plot_too():
    assert "no rows in the last hour" in bars(
        [{"at": "2026-01-01T10:00:00+00:00", "rows": 0}], "rows", "rows"
    )

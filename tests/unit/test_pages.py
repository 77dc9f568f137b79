"""What pages for users name is there: events, metrics, findings, keys of the configuration, commands, options."""

import re
import textwrap
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click
import pytest
import yaml

from cdcd import __version__
from cdcd.adapters.kafka.topics import MARKER_LIMITS
from cdcd.cli.__main__ import cli
from cdcd.config.loading import load_config
from cdcd.config.mirror import MirrorConfig
from cdcd.config.models import Config
from cdcd.config.types import Section
from tests.documents import ROOT, documents

GENERATED = {
    path
    for path in documents()
    if path.name in ("events.md", "metrics.md", "cli.md", "check.md", "debezium-options.md")
}
PAGES = sorted(
    {ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*.md"), ROOT / "helm/cdcd/README.md"}
    - GENERATED
)
EVENTS = set(re.findall(r"^\| `([a-z.]+)` \|", (ROOT / "docs" / "events.md").read_text(), re.MULTILINE))
METRICS = set(
    re.findall(r"^\| `(cdcd_[a-z_]+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
)
CODES = set(re.findall(r"^\| `([a-z._]+)` \|", (ROOT / "docs" / "check.md").read_text(), re.MULTILINE))


def keys(model: type[Section], before: str = "") -> Iterator[str]:
    """Every key of a configuration with those above it, `kafka.retry.max_s`."""
    for name, field in model.model_fields.items():
        yield before + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from keys(field.annotation, f"{before}{name}.")


KEYS = set(chain(keys(Config), keys(MirrorConfig)))
VALUES = {
    f"{name}.{key}"
    for name, value in yaml.safe_load((ROOT / "helm/cdcd/values.yaml").read_text()).items()
    if isinstance(value, dict)
    for key in value
}
# The chart takes the daemon's configuration below `config`.
VALUES |= {f"config.{key}" for key in KEYS}
STATUS = set(re.findall(r"^\| `([a-z_.]+)` \|", (ROOT / "docs" / "page.md").read_text(), re.MULTILINE))
"""The keys of /v1/status; test_daemon_status.py compares them with the object."""
SECTIONS = {key.partition(".")[0] for key in KEYS if "." in key}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_events_metrics_and_keys_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text()
    if page.name == "from-debezium.md":
        # The first column of tables, here and in debezium-options.md, has Debezium's own options.
        tables = text + (ROOT / "docs" / "debezium-options.md").read_text()
        theirs = re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\|([^|]+)\|", tables, re.MULTILINE)))
        text = re.sub("|".join([f"`{re.escape(option)}[`=]" for option in theirs]), "``", text)
    unknown = []
    for code in re.findall(r"`([^`\n]+)`", text):
        name = re.split(r"[:=\s]", code)[0].rstrip("*.")
        if re.fullmatch(r"cdcd_[a-z_]+", name) and not code.endswith("*"):
            # Names of slots and publications look the same, and are called after the pipeline of the example.
            if name not in METRICS and name.removeprefix("cdcd_") not in ("shop", "inventory", "heartbeat"):
                unknown.append(code)
        elif re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name) and not (ROOT / name).exists():
            first = name.partition(".")[0]
            known = (
                name in EVENTS | CODES | KEYS | VALUES | STATUS | MARKER_LIMITS.keys()
                or name.rpartition(".")[0] in KEYS
            )
            if first in SECTIONS | {event.partition(".")[0] for event in EVENTS} and not known:
                unknown.append(code)
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_a_page_names_have_these_options(page: Path) -> None:
    text = page.read_text()
    lines = re.findall(r"^ {4,}(cdcd [a-z].*)$", text, re.MULTILINE)
    for block in re.findall(r"^```sh.*?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        lines += re.findall(r"^(cdcd [a-z].*)$", block, re.MULTILINE)
    wrong = []
    for said in lines + re.findall(r"`(cdcd [a-z][^`\n]*)`", text):
        words = said.partition("#")[0].split()[1:]
        command: click.Command = cli
        top = click.Context(cli, **cli.context_settings)
        while isinstance(command, click.Group) and words and not words[0].startswith(("-", "[")):
            name = words.pop(0)
            found = command.get_command(top, name)
            if found is None:
                wrong.append(f"{said}: no command {name}")
                break
            command = found
        options = {"--help", "--version"} | {option for each in command.params for option in each.opts}
        wrong += [
            f"{said}: no option {word}"
            for word in re.findall(r"(--[a-z-]+)", " ".join(words))
            if word not in options
        ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_that_a_page_shows_can_be_read(page: Path, tmp_path: Path) -> None:
    for language, body in re.findall(
        r"^ *```(\w+).*?\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL
    ):
        code = textwrap.dedent(body)
        if language == "python":
            compile(code, str(page), "exec")
        elif language == "yaml" and {"name", "postgres", "kafka"} <= set(yaml.safe_load(code)):
            secret = tmp_path / "secret"
            secret.write_text("secret")
            file = tmp_path / "cdcd.yaml"
            file.write_text(re.sub(r"/run/secrets/[\w/-]+", str(secret), code))
            assert load_config(file, {}).name in ("shop", "inventory")
        elif language == "yaml":
            yaml.safe_load(code)


SHORT = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("tutorial", "concepts", "guarantees", "faq")),
]
"""The first pages of a new reader."""


def test_the_readme_fits_in_120_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", SHORT, ids=lambda page: page.name)
def test_cells_of_the_first_pages_are_short(page: Path) -> None:
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in row.strip("|").split(" | ")]
    # A link's address is not read.
    long = [cell for cell in cells if len(re.sub(r"\]\([^)]*\)", "]", cell)) > 160]
    assert long == []


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_measured_figures_that_a_page_shows_are_in_the_evidence(page: str) -> None:
    """Rows a second, memory, CPU and times of the tables about Debezium, each rounded as the page rounds it."""
    measured = (ROOT / "docs" / "evidence.md").read_text()
    measured = measured.partition("\n## Speed")[2].partition("\n## ")[0]
    rates = {f"{float(n.replace(',', '')) / 1000:.0f},000" for n in re.findall(r"\d+,\d{3}", measured)}
    rest = {
        f"{float(number.replace(',', '')):,.{digits}f} {unit}"
        for number, unit in re.findall(r"([\d,.]+) (MB|µs|s|ms)\b", measured)
        for digits in (0, 1)
    }
    table = (ROOT / page).read_text()
    table = re.findall(r"(?:^\|.*Debezium.*\n)(?:^\|.*\n)+", table, re.MULTILINE)[0]
    shown = re.findall(r"\d+,000|[\d,.]+ (?:MB|µs|s)\b", table.partition("\n")[2])
    assert len(shown) >= 12
    assert [figure for figure in shown if figure not in rates | rest] == []


def test_every_page_for_users_is_in_the_menu_of_the_site() -> None:
    menu = (ROOT / "deploy" / "pages" / "mkdocs.yaml").read_text().partition("\nnav:\n")[2]
    named = set(re.findall(r": (\S+\.md)$", menu, re.MULTILINE))
    assert {page.relative_to(ROOT).as_posix() for page in {*PAGES, *GENERATED}} - named == {
        "ARCHITECTURE.md"
    } - named


def test_the_citation_has_the_version_of_the_daemon() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_templates_of_issues_are_forms() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yaml"):
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form)
        assert all({"type", "attributes"} <= set(part) for part in form["body"])

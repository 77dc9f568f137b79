"""The tree from which the site is built: links that hold there."""

import pytest

from deploy.pages.source import DeadLinkError, documents, linked, write_source


def test_a_link_to_a_document_stays() -> None:
    text = "See [the runbook](../deploy/runbook.md#cdcdabsent) and [below](#places).\n"
    assert linked("docs/mirror.md", text, set()) == text


def test_a_link_to_a_file_leads_to_a_page_with_the_file() -> None:
    shown: set[str] = set()
    text = linked("README.md", "[minimal](config/minimal.yaml) and [role](deploy/sql/role.sql)\n", shown)
    assert text == "[minimal](config/minimal.yaml.md) and [role](deploy/sql/role.sql.md)\n"
    assert shown == {"config/minimal.yaml", "deploy/sql/role.sql"}


def test_a_link_to_a_folder_leads_to_its_readme() -> None:
    assert linked("README.md", "[chart](helm/cdcd)\n", set()) == "[chart](helm/cdcd/README.md)\n"


def test_a_link_to_another_folder_or_a_program_becomes_its_words() -> None:
    assert linked("README.md", "[SQL](deploy/sql), [image](Dockerfile)\n", set()) == "SQL, image\n"


def test_a_picture_is_shown_and_its_link_stays() -> None:
    shown: set[str] = set()
    assert linked("ARCHITECTURE.md", "![all](docs/overview.svg)\n", shown) == "![all](docs/overview.svg)\n"
    assert shown == {"docs/overview.svg"}


def test_code_is_left_as_it_is() -> None:
    text = "```text\n[a](nowhere)\n```\n"
    assert linked("README.md", text, set()) == text


def test_a_link_to_nothing_is_an_error_that_names_the_document() -> None:
    with pytest.raises(DeadLinkError, match=r"docs/mirror\.md links to gone\.md.* no docs/gone\.md"):
        linked("docs/mirror.md", "[gone](gone.md)\n", set())


def test_every_link_of_every_document_leads_somewhere(tmp_path) -> None:
    write_source(tmp_path)
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    assert written >= {*documents(), "config/reference.yaml.md", "config/mirror/reference.yaml.md"}

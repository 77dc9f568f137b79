"""The corpus of connectors: the share that is adopted, and one sentence on what each other one lacks."""

import yaml

from tests.unit.tools.adopt import corpus

_SHARE_MIN = 0.90
"""Raise this when more connectors are adopted."""


def test_the_verdicts_are_those_of_the_file() -> None:
    # `python -m tests.unit.tools.adopt.corpus` writes the file.
    found = corpus.verdicts()
    print(corpus.share(found))
    assert found == yaml.safe_load(corpus.VERDICTS.read_text(encoding="utf-8"))
    assert len(found) >= 100
    assert len([name for name, sentences in found.items() if not sentences]) >= _SHARE_MIN * len(found)


def test_no_configuration_names_a_host_or_a_password() -> None:
    text = corpus.CONNECTORS.read_text(encoding="utf-8")
    assert {each.split("/")[2].split(":")[0] for each in text.split() if each.startswith("http")} <= {
        "registry"
    }
    for options in corpus.connectors().values():
        secrets = {value for name, value in options.items() if name.endswith(("password", "secret"))}
        assert all(value == "secret" or value.startswith("${") for value in secrets), secrets

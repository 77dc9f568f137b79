"""Who reads what cdcd prints looks for the password of a DSN. 200,000 drawn DSNs show none of it."""

import io
import json
from random import Random
from typing import Literal

import pytest
import yaml

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.config.loading import parse_config
from cdcd.config.masking import mask_text, masked_dsn
from cdcd.config.reference import effective_yaml
from cdcd.config.sections.process import LogConfig
from cdcd.core.errors import CdcdError
from cdcd.core.facts.process import Failed
from cdcd.telemetry.logs import LastProblems, configure_logging
from tests.dsns import draw, leaked

SHARE = 25_000

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader where it is there: it needs a tenth of the time for a thousand whole configurations."""

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.attack(
    gains="the database's password, from the configuration in effect or a log line", before="failed"
)
@pytest.mark.parametrize("seed", range(8))
def test_drawn_dsns_show_nothing_of_their_passwords(seed: int):
    random = Random(1000 + seed)
    for _ in range(SHARE):
        dsn, password = draw(random)
        for text in (masked_dsn(dsn), mask_text(dsn)):
            assert not leaked(password, text), (dsn, text)


@pytest.mark.worst
@pytest.mark.attack(gains="the database's password, from a log line or an error", before="failed")
@pytest.mark.parametrize("form", ["json", "console"])
def test_the_log_the_page_and_errors_show_nothing_of_passwords(form: Literal["json", "console"]):
    random = Random(7)
    for _ in range(300):
        dsn, password = draw(random)
        try:
            said = str(parse_dsn(dsn))
        except CdcdError as error:
            said = error.message
        stream, problems = io.StringIO(), LastProblems()
        observe = problems.observing(configure_logging(LogConfig(level="info", format=form), stream))
        observe(Failed(error="SourceError", message=dsn, hint=f"{said} {said}", exit_code=3))
        page = "".join(f"{one.message} {one.hint}" for one in problems.found)
        assert not leaked(password, said + stream.getvalue() + page), dsn


@pytest.mark.attack(gains="the database's password, from `cdcd config`", before="failed")
def test_the_configuration_in_effect_shows_nothing_of_passwords():
    random = Random(8)
    for _ in range(1000):
        dsn, password = draw(random)
        data = {"name": "shop", "postgres": {"dsn": dsn}, "kafka": {"bootstrap_servers": "b:1"}}
        try:
            effective = yaml.load(effective_yaml(parse_config(json.dumps(data), {})), LOADER)
            shown = str(effective["postgres"]["dsn"])
        except CdcdError as error:
            shown = error.message
        assert not leaked(password, shown), dsn

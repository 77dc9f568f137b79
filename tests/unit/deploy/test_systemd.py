"""The systemd unit beside the exit codes that `cdcd run` can end with."""

import configparser
from pathlib import Path

from cdcd.core.errors import (
    EXIT_CODES,
    NOT_BY_A_RESTART,
    ConfigError,
    LimitError,
    PositionError,
    ProtocolError,
)

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "cdcd@.service"


def test_the_unit_does_not_repeat_a_start_that_must_end_in_the_same_way():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    prevented = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert prevented == NOT_BY_A_RESTART
    assert prevented <= EXIT_CODES.keys()
    # A server that is away at the start has the codes of its side, and comes back.
    assert not prevented & {0, 1, 3, 4, 7}
    assert {each.exit_code for each in (ConfigError, LimitError, PositionError, ProtocolError)} <= prevented


def test_a_failure_that_lasts_is_not_tried_every_five_seconds():
    lines = UNIT.read_text().splitlines()
    assert {"RestartSteps=8", "RestartMaxDelaySec=5min"} <= set(lines)

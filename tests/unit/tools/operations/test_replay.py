from pathlib import Path

import pytest

from cdcd.core.errors import ConfigError
from cdcd.tools.operations.replay import Range, replay
from tests.unit.config.test_loading import parse


def test_a_replay_never_writes_to_topics_that_it_cannot_claim(tmp_path: Path) -> None:
    config = parse("topics: {name: '{table}'}")
    with pytest.raises(ConfigError, match="it claims no topics"):
        replay(tmp_path, config, "topics", Range(), show=print, notice=print)

"""Which parameters go together."""

import pytest

import cdcd
from cdcd.stream.settings import StreamSettings

DSN = "postgresql://u:secret@h/d"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"create_slot": True}, "create_slot=True without slot"),
        ({"messages": True, "streaming": "on"}, "messages=True cannot be combined with streaming='on'"),
        ({"messages": True, "streaming": "parallel"}, "messages=True cannot be combined"),
    ],
)
def test_parameters_that_contradict_each_other_are_told_before_anything_is_connected(parameters, said):
    with pytest.raises(cdcd.ConfigError, match=said) as caught:
        cdcd.connect(DSN, publication="p", **parameters)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("messages", "streaming", "mode"), [(False, "auto", "auto"), (True, "auto", "off"), (False, "on", "on")]
)
def test_messages_are_received_after_the_commit(messages, streaming, mode):
    settings = StreamSettings(DSN, "p", messages=messages, streaming=streaming)
    assert settings.streaming_mode == mode


def test_a_password_is_not_shown():
    assert "secret" not in repr(StreamSettings(DSN, "p")) + repr(cdcd.connect(DSN, publication="p"))

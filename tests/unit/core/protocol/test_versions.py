import pytest

from cdcd.core.errors import ConfigError
from cdcd.core.protocol.versions import StreamingMode, protocol_version, start_options

PG13, PG14, PG15, PG16, PG17, PG18, PG19 = (130023, 140000, 150018, 160000, 170010, 180004, 190000)


@pytest.mark.parametrize(
    ("server", "version"), [(PG13, 1), (PG14, 2), (PG15, 3), (PG16, 4), (PG17, 4), (PG18, 4), (PG19, 4)]
)
def test_the_newest_version_that_the_server_speaks(server, version):
    assert protocol_version(server) == version


def test_a_server_before_13_is_refused():
    with pytest.raises(ConfigError, match=r"PostgreSQL 12, too old.* 13 or newer"):
        protocol_version(120000)


NAMES = ("publication_names", '"p"')


@pytest.mark.parametrize(
    ("server", "options", "abort_info"),
    [
        (PG13, (("proto_version", "1"), NAMES), False),
        (PG14, (("proto_version", "2"), NAMES, ("messages", "true"), ("streaming", "on")), False),
        (PG15, (("proto_version", "3"), NAMES, ("messages", "true"), ("streaming", "on")), False),
        (
            PG16,
            (
                ("proto_version", "4"),
                NAMES,
                ("messages", "true"),
                ("streaming", "parallel"),
                ("origin", "any"),
            ),
            True,
        ),
    ],
)
def test_by_default_a_server_is_told_what_it_knows_and_no_more(server, options, abort_info):
    chosen = start_options(server, "auto", ["p"])
    assert chosen.options == options
    assert chosen.abort_info is abort_info
    assert chosen.messages is (server >= PG14)


def test_everything_at_once():
    chosen = start_options(PG18, "auto", ["p", "q"], two_phase=True, origin="none", binary=True)
    assert chosen.options == (
        ("proto_version", "4"),
        ("publication_names", '"p","q"'),
        ("binary", "true"),
        ("messages", "true"),
        ("streaming", "parallel"),
        ("two_phase", "true"),
        ("origin", "none"),
    )


def test_nothing_but_what_must_be_said():
    chosen = start_options(PG15, "auto", ["p"], streaming="off", messages=False)
    assert chosen.options == (("proto_version", "3"), NAMES)
    assert not chosen.messages


@pytest.mark.parametrize(
    ("server", "protocol", "streaming"),
    [
        (PG18, 1, StreamingMode.OFF),
        (PG18, 2, StreamingMode.ON),
        (PG18, 3, StreamingMode.ON),
        (PG18, 4, StreamingMode.PARALLEL),
        (PG14, "auto", StreamingMode.ON),
        (PG13, "auto", StreamingMode.OFF),
    ],
)
def test_streaming_by_default_is_the_best_that_the_version_has(server, protocol, streaming):
    assert start_options(server, protocol, ["p"]).streaming is streaming


def test_an_older_version_on_a_newer_server_still_has_the_options_of_the_server():
    chosen = start_options(PG18, 1, ["p"])
    assert dict(chosen.options) == {
        "proto_version": "1",
        "publication_names": '"p"',
        "messages": "true",
        "origin": "any",
    }


def test_only_parallel_streaming_brings_abort_info():
    assert start_options(PG18, 4, ["p"], streaming="parallel").abort_info
    assert not start_options(PG18, 4, ["p"], streaming="on").abort_info
    assert not start_options(PG18, 4, ["p"], streaming="off").abort_info


@pytest.mark.parametrize(
    ("server", "asked", "message", "hint"),
    [
        (PG13, {"protocol": 2}, "protocol: 2 needs PostgreSQL 14", "upgrade the server"),
        (PG15, {"protocol": 4}, "protocol: 4 needs PostgreSQL 16", "upgrade the server"),
        (PG18, {"protocol": 5}, "There is no protocol version 5", "one of 1, 2, 3, 4"),
        (PG18, {"protocol": 0}, "There is no protocol version 0", "one of 1, 2, 3, 4"),
        (PG13, {"streaming": "on"}, "streaming: on needs protocol version 2", "PostgreSQL 14 or newer"),
        (
            PG15,
            {"streaming": "parallel"},
            "streaming: parallel needs protocol version 4, but version 3 is in use",
            "PostgreSQL 16 or newer",
        ),
        (
            PG18,
            {"protocol": 1, "streaming": "on"},
            "streaming: on needs protocol version 2, but version 1 is in use",
            "protocol: auto",
        ),
        (PG14, {"two_phase": True}, "two_phase: true needs protocol version 3", "PostgreSQL 15 or newer"),
        (PG18, {"protocol": 2, "two_phase": True}, "two_phase: true needs protocol version 3", "auto"),
        (PG13, {"binary": True}, "binary transfer needs PostgreSQL 14", "upgrade the server"),
        (PG15, {"origin": "none"}, "origin: none needs PostgreSQL 16", "upgrade the server"),
    ],
)
def test_what_the_server_or_the_version_lacks_is_refused_when_asked_for(server, asked, message, hint):
    with pytest.raises(ConfigError) as caught:
        start_options(server, publications=["p"], **{"protocol": "auto", **asked})
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_publication_names_keep_their_case_quotes_and_commas():
    chosen = start_options(PG13, "auto", ["Shop", 'a"b', "c,d"])
    assert dict(chosen.options)["publication_names"] == '"Shop","a""b","c,d"'

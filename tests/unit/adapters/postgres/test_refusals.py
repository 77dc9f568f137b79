"""The table of PostgreSQL's refusals."""

import pytest

from cdcd.adapters.postgres.answers import Answer, find_refusal, refused
from cdcd.adapters.postgres.refusals import REFUSALS, SlotActiveError
from cdcd.core.errors import (
    CdcdError,
    ConfigError,
    LimitError,
    PositionError,
    SourceError,
    TransientError,
    WithoutBinaryError,
)

NAMES = {"role": "cdcd", "database": "shop", "slot": "s", "publication": "p"}


@pytest.mark.parametrize(
    ("sqlstate", "message", "kind"),
    [
        ("55000", 'logical decoding requires "wal_level" >= "logical"', SourceError),
        ("55000", "logical decoding requires wal_level >= logical", SourceError),
        ("55000", 'can no longer get changes from replication slot "s"', PositionError),
        ("55000", 'can no longer access replication slot "s"', PositionError),
        (
            "55000",
            'replication slot "s" specified in parameter "synchronized_standby_slots" does not have active_pid',
            TransientError,
        ),
        (
            "55000",
            'physical replication slot "s" specified in parameter "synchronized_standby_slots" has been invalidated',
            TransientError,
        ),
        (
            "22023",
            'replication slot "s" specified in parameter "synchronized_standby_slots" does not exist',
            TransientError,
        ),
        ("58P01", "requested WAL segment 000000010000000000000003 has already been removed", PositionError),
        ("42704", 'replication slot "s" does not exist', PositionError),
        ("42704", 'publication "p" does not exist', SourceError),
        ("42704", 'snapshot "00000028-00000008-1" does not exist', TransientError),
        ("42883", "no binary output function available for type aclitem", WithoutBinaryError),
        ("42883", "function f(integer) does not exist", SourceError),
        ("22023", 'invalid snapshot identifier: "00000028-00000008-1"', TransientError),
        ("53400", "all replication slots are in use", SourceError),
        ("55006", 'replication slot "s" is active for PID 7', SlotActiveError),
        ("55006", 'database "x" is being accessed by other users', TransientError),
        ("42710", 'replication slot "s" already exists', TransientError),
        ("57P01", "terminating connection due to administrator command", TransientError),
        ("57P04", "the database was dropped", SourceError),
        ("53100", "could not extend file: No space left on device", TransientError),
        ("22023", "option is not valid", ConfigError),
        ("0A000", "client sent proto_version=9 but server only supports protocol 4 or lower", ConfigError),
        ("0A000", 'replication slot "s" was not created in this database', SourceError),
        ("XX000", "something nobody foresaw", SourceError),
        ("", "server closed the connection unexpectedly", TransientError),
        ("", "something libpq made up", TransientError),
        ("", "could not create socket: Too many open files", LimitError),
        ("", "could not create socket: Too many open files in system", LimitError),
    ],
)
def test_a_refusal_has_the_kind_that_decides_what_the_daemon_does(
    sqlstate: str, message: str, kind: type[CdcdError]
) -> None:
    error = refused("doing", Answer(sqlstate, message), NAMES)
    assert type(error) is kind
    assert error.message.startswith(f"doing: {message}")
    assert error.hint


def test_every_hint_can_be_filled_in_with_or_without_names() -> None:
    for row in REFUSALS:
        for names in (NAMES, {}):
            error = refused("x", Answer(row.sqlstate.ljust(5, "0"), row.fragment), names)
            assert "{" not in error.hint
            assert error.hint.strip() == error.hint


def test_no_row_stands_behind_one_that_takes_all_it_could_match() -> None:
    for row in REFUSALS:
        if row.sqlstate:
            assert find_refusal(Answer(row.sqlstate.ljust(5, "0"), row.fragment)) is row
        if row.fragment and not row.sqlstate:
            assert find_refusal(Answer("", row.fragment)) is row


def test_detail_is_shown_and_secrets_are_not() -> None:
    error = refused(
        "x", Answer("28000", "no pg_hba.conf entry", "over\n  two lines hunter2"), NAMES, ["hunter2"]
    )
    assert "(over two lines ***)" in error.message


@pytest.mark.parametrize(
    "answer",
    [
        Answer("22P02", 'invalid input syntax for type integer: "s3cr3t"'),
        Answer("22003", 'value "s3cr3t" is out of range for type integer'),
        Answer(
            "23505",
            'duplicate key value violates unique constraint "k"',
            "Key (ssn)=(s3cr3t) already exists.",
        ),
        Answer("P0001", "s3cr3t"),
    ],
)
def test_a_message_that_may_hold_a_value_is_not_shown(answer: Answer):
    assert "s3cr3t" not in answer.text
    assert f"[SQLSTATE {answer.sqlstate}]" in answer.text
    assert "s3cr3t" not in str(refused("running heartbeat.action_query", answer, {}))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(
            "42703", 'column "s3cr3t" does not exist', context="PL/pgSQL function f(text) line 1 at EXECUTE"
        ),
        Answer("42501", "s3cr3t", function="exec_stmt_raise"),
        Answer("ZZ999", "s3cr3t", function="exec_stmt_raise"),
        Answer("22023", 'invalid value for parameter "x": "s3cr3t"'),
    ],
)
def test_of_a_query_that_reads_rows_no_message_of_a_function_is_shown(answer: Answer):
    assert "s3cr3t" not in answer.text_of_rows
    assert f"[SQLSTATE {answer.sqlstate}]" in answer.text_of_rows


def test_what_the_server_says_of_names_is_shown():
    answer = Answer("42703", 'column "x" does not exist', function="errorMissingColumn")
    assert answer.text_of_rows == 'column "x" does not exist [SQLSTATE 42703]'


def test_a_timeout_is_told_in_the_servers_own_words_whatever_ran():
    said = "canceling statement due to statement timeout"
    answer = Answer(
        "57014", said, function="ProcessInterrupts", context="PL/pgSQL function own.slow() line 1"
    )
    assert answer.text_of_rows == f"{said} [SQLSTATE 57014]"
    # A function can raise the same SQLSTATE with any message.
    raised = Answer(
        "57014", "s3cr3t", function="exec_stmt_raise", context="PL/pgSQL function own.slow() line 1"
    )
    assert "s3cr3t" not in raised.text_of_rows


def test_a_write_of_a_function_is_told_without_what_the_function_may_have_raised():
    answer = Answer(
        "25006", "cannot execute INSERT in a read-only transaction: word", context="PL/pgSQL function f()"
    )
    assert "read-only transaction" in answer.text_of_rows
    assert "word" not in answer.text_of_rows


def test_a_row_filter_that_fails_is_told_with_its_change_and_without_the_row():
    context = 'slot "s", output plugin "pgoutput", in the change callback, associated LSN 0/1A2B3C8'
    error = refused("streaming", Answer("22012", "s3cr3t", context=context), NAMES)
    assert error.message.endswith("[SQLSTATE 22012] for the change at LSN 0/1A2B3C8")
    assert "row filter of publication" in error.hint
    assert "pg_get_wal_record_info('0/1A2B3C8')" in error.hint
    assert "s3cr3t" not in error.message + error.hint
    assert "row filter" not in refused("streaming", Answer("22012", "division by zero"), NAMES).hint


def test_a_value_that_cannot_be_sent_is_told_with_its_change():
    context = 'slot "s", output plugin "pgoutput", in the change callback, associated LSN 0/1A2B3C8'
    answer = Answer("XX000", "invalid memory alloc request size 1080000003", context=context)
    error = refused("streaming", answer, NAMES)
    assert error.message.endswith("[SQLSTATE XX000] for the change at LSN 0/1A2B3C8")
    assert "pg_get_wal_record_info('0/1A2B3C8')" in error.hint
    assert "postgres.binary: true" in error.hint
    assert "LSN" not in refused("streaming", Answer("54000", "string buffer exceeds"), NAMES).message

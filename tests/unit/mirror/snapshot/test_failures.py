"""Spark passes a task's exception on as text. The type in it decides whether the snapshot is taken again."""

import traceback

import pytest

from cdcd.adapters.postgres.table_chunks import ChangedTableError
from cdcd.core.errors import CdcdError, ConfigError, SinkUnavailableError, SourceError, TransientError
from cdcd.mirror.snapshot.failures import raised_by_task


def as_spark_says(error: CdcdError) -> Exception:
    """As the driver gets what a Python worker raised: the traceback as text, within an exception of Spark."""
    try:
        raise error
    except CdcdError as raised:
        text = "".join(traceback.format_exception(raised))
    return RuntimeError(f"\n  An exception was thrown from the Python worker.\n{text}")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (TransientError, TransientError),
        (ChangedTableError, TransientError),
        (SinkUnavailableError, TransientError),
        (SourceError, SourceError),
        (ConfigError, SourceError),
    ],
)
def test_a_failure_of_cdcd_in_a_task_keeps_its_kind_its_message_and_its_hint(
    raised: type[CdcdError], expected: type[CdcdError]
):
    found = raised_by_task("public.pair", as_spark_says(raised("It is gone: all of it.", hint="Do this.")))
    assert isinstance(found, CdcdError)
    assert type(found) is expected
    assert found.message == "The snapshot of public.pair was not read: It is gone: all of it."
    assert found.hint == "Do this."


def test_of_several_failures_the_last_one_is_what_the_task_raised():
    try:
        try:
            raise ChangedTableError("It was altered.", hint="")
        except ChangedTableError as cause:
            raise SourceError("It may not be read.", hint="Grant it.") from cause
    except SourceError as error:
        found = raised_by_task("public.pair", as_spark_says(error))
    assert isinstance(found, SourceError)
    assert found.hint == "Grant it."


@pytest.mark.parametrize(
    "text", ["java.lang.OutOfMemoryError: heap", "cdcd.nothing.SuchError: told by a row"]
)
def test_what_is_no_failure_of_cdcd_is_passed_on_as_it_is(text: str):
    error = RuntimeError(text)
    assert raised_by_task("public.pair", error) is error

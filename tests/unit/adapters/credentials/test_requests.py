"""A request ends after its timeout, whatever the server sends."""

import threading

import pytest

from cdcd.adapters.credentials.requests import ABANDONED_MAX, AbandonedError, Limit


def test_a_call_within_the_limit_gives_its_result_or_its_exception():
    limit = Limit(10)
    assert limit.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        limit.run(lambda: 1 // 0)


def test_an_exception_of_the_call_itself_may_be_a_timeout_and_abandons_nothing():
    def out_of_time() -> None:
        raise TimeoutError("of the library")

    limit = Limit(10)
    with pytest.raises(TimeoutError, match="of the library"):
        limit.run(out_of_time)
    assert limit.run(lambda: 7) == 7


def test_abandoned_calls_keep_few_threads_and_then_let_no_other_begin():
    goes_on = threading.Event()
    limit = Limit(0.05)
    before = threading.active_count()
    for _ in range(ABANDONED_MAX):
        with pytest.raises(AbandonedError, match=r"no answer within 0\.05 s"):
            limit.run(goes_on.wait)
    for _ in range(3):
        with pytest.raises(AbandonedError, match="earlier requests"):
            limit.run(lambda: pytest.fail("must not run"))
    assert threading.active_count() == before + ABANDONED_MAX
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "limited":
            thread.join(10)
    assert limit.run(lambda: 7) == 7


def test_a_call_that_hangs_for_ever_does_not_prevent_the_next_one():
    goes_on = threading.Event()
    limit = Limit(0.05)
    with pytest.raises(AbandonedError):
        limit.run(goes_on.wait)
    limit.timeout_s = 10
    assert limit.run(lambda: 7) == 7
    goes_on.set()

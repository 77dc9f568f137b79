from cdcd.core.snapshot.outcomes import (
    CANCELLED,
    OUTCOMES_MAX,
    REQUESTS_BYTES_MAX,
    Outcome,
    Requested,
    find_request,
    outcome_from,
    outcome_json,
    remember,
    request_from,
    request_json,
    with_request,
)


def test_of_many_tables_those_that_failed_are_remembered_longest():
    kept: tuple[Outcome, ...] = ()
    for number in range(3 * OUTCOMES_MAX):
        kept = remember(kept, Outcome(f"a.t{number}", "", 1, "denied" if number == 2 else ""))
    assert len(kept) == OUTCOMES_MAX
    assert [each.name for each in kept if each.error] == ["a.t2"]
    assert kept[-1].name == f"a.t{3 * OUTCOMES_MAX - 1}"
    # AND a reading that made a failure good stays as long as the failure
    kept = remember(kept, Outcome("a.t2", "", 1))
    for number in range(2 * OUTCOMES_MAX):
        kept = remember(kept, Outcome(f"b.t{number}", "", 1))
    assert [each.error for each in kept if each.name == "a.t2"] == ["denied", ""]
    # AND failures alone have the same limit
    for number in range(2 * OUTCOMES_MAX):
        kept = remember(kept, Outcome(f"c.t{number}", "", 1, "denied"))
    assert len(kept) == OUTCOMES_MAX


def test_a_request_ends_with_its_last_table_and_keeps_the_first_error():
    request = Requested("me", 3, asked=10)
    request = request.end_table(5, "", 3, 20).end_table(0, "denied", 3, 30)
    assert (request.has_ended, request.ended) == (False, 0)
    request = request.end_table(0, "cancelled", CANCELLED, 40)
    assert request.has_ended
    assert (request.complete, request.failed, request.rows, request.ended) == (1, 2, 5, 40)
    assert (request.error, request.code) == ("denied", 3)


def test_requests_that_have_ended_take_a_limited_part_of_the_record_and_open_ones_stay():
    requests: tuple[Requested, ...] = (Requested("open", 1),)
    for number in range(100):
        requests = with_request(requests, Requested(f"{number} " + "x" * 150, 1, complete=1))
    assert find_request(requests, "open") is not None
    assert sum(len(str(request_json(each))) for each in requests) < 2 * REQUESTS_BYTES_MAX
    assert requests[-1].id.startswith("99 ")
    # AND one that is larger than the limit is kept until the next one ends
    requests = with_request(requests, Requested("y" * 3000, 1, complete=1))
    assert [each.id[0] for each in requests] == ["o", "y"]


def test_both_are_read_back_as_they_were_written():
    outcome = Outcome("a.b", "me", 7, "why", 1, 2, 3)
    assert outcome_from(*outcome_json(outcome)) == outcome  # type: ignore[arg-type]
    assert outcome_from("a.b", "me", 7, "") == Outcome("a.b", "me", 7)
    request = Requested("me", 3, 1, 1, 9, 10, 0, "why", 3)
    assert request_from(*request_json(request)) == request

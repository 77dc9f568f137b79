from cdcd.core.engine.actions import EnsureTopics
from cdcd.core.engine.topics import ASKED_MAX, SLICE, Topics


def wants(topics: Topics, count: int) -> list[str]:
    names = [f"t{number}" for number in range(count)]
    assert not any(topics.is_ready(name) for name in names)
    return names


def test_many_topics_are_requested_in_slices_and_in_order():
    topics = Topics()
    names = wants(topics, ASKED_MAX + 2)
    asked: list[str] = []
    while request := topics.wanted():
        assert len(request.topics) <= SLICE
        asked += request.topics
    # THEN no more are requested until the first ones are there
    assert asked == names[:ASKED_MAX]
    assert topics.awaits_topics
    topics.ready(asked[:SLICE])
    assert topics.wanted() == EnsureTopics(tuple(names[ASKED_MAX:]))
    topics.ready(names)
    assert not topics.awaits_topics


def test_a_refused_topic_makes_room_for_the_next_request():
    topics = Topics()
    names = wants(topics, ASKED_MAX + 1)
    while request := topics.wanted():
        assert request.topics
    topics.forget(names[:1])
    assert topics.wanted() == EnsureTopics(tuple(names[ASKED_MAX:]))


def test_topics_of_tables_that_are_read_later_are_requested_although_many_are_awaited():
    topics = Topics()
    wants(topics, ASKED_MAX)
    while topics.wanted():
        pass
    assert topics.wanted(("later",)) == EnsureTopics((), ahead=("later",))


def test_topics_are_lacking_until_they_are_ready():
    topics = Topics()
    topics.ready(["a"])
    assert topics.lacking(["a", "b"]) == ["b"]

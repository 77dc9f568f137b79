"""Which table has which name: by what the stream says, and by what is listed."""

import json
from collections.abc import Mapping

from cdcd.core.catalog.oids import Oids
from cdcd.core.engine.actions import Published
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.owners import ANY_NAME
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.facts.tables import TableAdded, TableReplaced
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.signals import ADDED, REPLACED
from cdcd.core.snapshot.table_task import TableTask
from tests.unit.core.engine.tables import Facts, Rendering, no_fates, tasks

BEFORE = {1: "public.a", 2: "public.b"}
READY = 1000


class Daemon:
    """Published tables and what they change. The stream and the list are played by hand."""

    def __init__(
        self,
        published: Mapping[int, str] = BEFORE,
        *,
        progress: Progress | None = None,
        reads: bool = True,
        reads_added: bool = True,
        ends_rows: bool = True,
        excluded: str = "",
    ) -> None:
        self.facts, self.ready = Facts(), True
        self.incremental = Incremental(
            tasks(progress or Progress(), published, self.facts),
            Rendering(),
            SnapshotSettings(chunk_bytes=1000, parallelism=1),
            no_fates(),
            observe=self.facts,
        )
        self.tables = PublishedTables(
            self.incremental,
            published,
            reads=reads,
            reads_added=reads_added,
            ends_rows=ends_rows,
            excluded=lambda name: name == excluded,
            observe=self.facts,
        )

    def event(self, oid: int, name: str) -> bool:
        """The first event of a table under a name, and the end of its transaction; True: rows of another end here."""
        ends = self.tables.described(oid, name)
        self.tables.settle(oid, name)
        return ends

    def listing(
        self, after: int = 500, estimates: Mapping[int, int] | None = None, **tables: int
    ) -> list[int]:
        names = {oid: f"public.{name}" for name, oid in tables.items()}
        found = self.tables.listed(Published(names, after, estimates or {}))
        for oid in found:
            self.tables.looked(oid, names[oid])
        return found

    def due(self, position: int = READY) -> list[int]:
        found = self.tables.due(position, lambda oid: self.ready)
        for oid in found:
            self.tables.replace(oid)
        return found

    @property
    def to_read(self) -> list[tuple[int, str, str]]:
        progress, names = self.incremental.progress, self.incremental.tasks.names
        waiting = [
            (oid, names[oid], ADDED)
            for oid in progress.waiting.oids[progress.begun :]
            if oid in progress.added
        ]
        return [*[(task.oid, task.name, task.request) for task in progress.tasks], *waiting]

    @property
    def replaced(self) -> list[tuple[str, int, int]]:
        return [(fact.table, fact.former_oid, fact.oid) for fact in self.facts.of(TableReplaced)]

    @property
    def added(self) -> list[str]:
        return [fact.table for fact in self.facts.of(TableAdded)]

    def restarted(self, published: Mapping[int, str]) -> "Daemon":
        progress = self.incremental.watched.write_down()
        assert progress is not None
        return Daemon(published, progress=Progress.from_json(json.loads(json.dumps(progress.to_json()))))


def test_at_first_all_that_is_published_is_known():
    daemon = Daemon()
    assert daemon.incremental.progress.known == Oids(BEFORE, BEFORE)
    assert daemon.listing(a=1, b=2) == []
    assert not daemon.event(1, "public.a")
    assert (daemon.facts.all, daemon.to_read) == ([], [])
    assert daemon.tables.known_oids() == {1, 2}


# Tables that are added.


def test_a_table_that_is_added_is_read():
    daemon = Daemon()
    assert daemon.listing(a=1, b=2, c=3, estimates={3: 70}) == []
    assert daemon.facts.all == [TableAdded(table="public.c", rows=70, read=True, command="")]
    assert daemon.to_read == [(3, "public.c", ADDED)]
    daemon.listing(a=1, b=2, c=3)
    assert daemon.added == ["public.c"]


def test_or_a_fact_says_how_many_rows_were_left_out_and_which_command_reads_them():
    daemon = Daemon(reads_added=False)
    daemon.listing(a=1, b=2, c=3, estimates={3: 70})
    assert daemon.facts.all == [
        TableAdded(table="public.c", rows=70, read=False, command="cdcd snapshot start --table public.c")
    ]
    assert daemon.to_read == []


def test_an_excluded_table_that_is_added_is_read_on_demand_only():
    daemon = Daemon(excluded="public.c")
    daemon.listing(a=1, b=2, c=3)
    assert daemon.to_read == []
    assert daemon.added == ["public.c"]


def test_a_table_that_is_added_is_read_also_when_its_first_event_comes_before_the_list():
    daemon = Daemon()
    assert not daemon.event(3, "public.c")
    daemon.listing(a=1, b=2, c=3)
    assert daemon.to_read == [(3, "public.c", ADDED)]


def test_a_table_that_left_the_publication_and_is_back_is_added_again():
    # What was changed meanwhile is in no topic.
    daemon = Daemon()
    daemon.listing(a=1)
    daemon.due()
    daemon.listing(a=1, b=2)
    assert daemon.to_read == [(2, "public.b", ADDED)]


def test_so_is_one_that_left_it_and_came_back_between_two_lists():
    daemon = Daemon()
    published = {1: "public.a", 2: "public.b"}
    daemon.tables.listed(Published(published, 0, {}, members={1: 100, 2: 101}))
    # Its former entry is remembered while a list lacks it and the stream has not got there.
    for members, after in (({1: 100}, 500), ({1: 100, 2: 102}, 600)):
        daemon.tables.listed(Published({oid: published[oid] for oid in members}, after, {}, members=members))
    daemon.due(599)
    daemon.tables.listed(Published(published, 700, {}, members={1: 100, 2: 102}))
    assert daemon.to_read == []
    # It counts when the stream is past it, and once.
    daemon.due(600)
    for _ in range(2):
        daemon.tables.listed(Published(published, 800, {}, members={1: 100, 2: 102}))
        daemon.due(900)
    assert daemon.to_read == [(2, "public.b", ADDED)]


def test_one_that_was_listed_as_gone_is_added_once():
    daemon = Daemon()
    daemon.tables.listed(Published({1: "public.a", 2: "public.b"}, 0, {}, members={1: 100, 2: 101}))
    daemon.tables.listed(Published({1: "public.a"}, 0, {}, members={1: 100}))
    daemon.due()
    for _ in range(3):
        daemon.tables.listed(Published({1: "public.a", 2: "public.b"}, 0, {}, members={1: 100, 2: 102}))
        daemon.due()
    assert daemon.to_read == [(2, "public.b", ADDED)]


def test_so_is_one_that_left_it_and_came_back_while_nothing_ran():
    published = {1: "public.a", 2: "public.b"}
    former = Daemon()
    former.tables.listed(Published(published, 0, {}, members={1: 100, 2: 101}))
    daemon = Daemon(published, progress=former.incremental.progress)
    daemon.tables.listed(Published(published, 500, {}, members={1: 100, 2: 102}))
    # A session that ends before the stream has got there leaves it to the next one.
    assert daemon.incremental.progress.newest_member == 101
    daemon = Daemon(published, progress=daemon.incremental.progress)
    daemon.tables.listed(Published(published, 500, {}, members={1: 100, 2: 102}))
    daemon.due(500)
    for _ in range(2):
        daemon.tables.listed(Published(published, 600, {}, members={1: 100, 2: 102}))
        daemon.due(600)
    assert daemon.to_read == [(2, "public.b", ADDED)]
    assert daemon.incremental.progress.newest_member == 102


def test_so_is_one_that_left_it_and_came_back_before_the_first_list_of_a_pipeline():
    daemon = Daemon()
    published = {1: "public.a", 2: "public.b"}
    for _ in range(2):
        daemon.tables.listed(Published(published, 500, {}, members={1: 100, 2: 102}, newest_before=101))
        daemon.due(500)
    assert daemon.to_read == [(2, "public.b", ADDED)]


def test_one_that_was_set_aside_and_left_is_read_once_when_it_is_back():
    daemon = Daemon()
    published = {1: "public.a", 2: "public.b"}
    daemon.tables.listed(Published(published, 0, {}, members={1: 100, 2: 101}))
    daemon.tables.listed(Published({1: "public.a"}, 0, {}, members={1: 100}))
    daemon.tables.vacate(2)
    assert daemon.tables.described(2, "public.b")
    daemon.tables.settle(2, "public.b")
    for _ in range(3):
        daemon.tables.listed(Published(published, 0, {}, members={1: 100, 2: 102}))
        daemon.due()
    assert daemon.to_read == [(2, "public.b", REPLACED)]


def test_a_table_with_a_fresh_name_is_read_into_its_new_topic_also_where_added_tables_are_not():
    for daemon in (Daemon(), Daemon(reads_added=False)):
        # WHEN a change of the table comes under its new name, THEN a truncate record begins the rows of the topic
        assert daemon.event(1, "public.c")
        daemon.listing(c=1, b=2)
        assert daemon.to_read == [(1, "public.c", REPLACED)]
        assert daemon.facts.all == [
            TableReplaced(table="public.c", former_oid=1, oid=1, truncated=True, read=True)
        ]
        # THEN that is so once, also for another process
        assert not daemon.event(1, "public.c")
        after = daemon.restarted({1: "public.c", 2: "public.b"})
        assert not after.event(1, "public.c")
        assert after.listing(c=1, b=2) == []
        assert after.to_read == [(1, "public.c", REPLACED)]


def test_so_it_is_where_no_change_comes_under_the_new_name():
    daemon = Daemon(reads_added=False)
    assert daemon.listing(c=1, b=2) == [1]
    assert daemon.due() == [1]
    assert daemon.to_read == [(1, "public.c", REPLACED)]


def test_a_table_with_a_fresh_name_that_is_not_to_be_read_has_no_record_that_begins_its_rows():
    # A truncate record would say that the table has no rows but those that follow.
    for daemon in (Daemon(reads=False, reads_added=False), Daemon(excluded="public.c", reads_added=False)):
        assert not daemon.event(1, "public.c")
        daemon.listing(c=1, b=2, estimates={1: 70})
        assert daemon.to_read == []
        assert daemon.facts.all == [
            TableAdded(table="public.c", rows=70, read=False, command="cdcd snapshot start --table public.c")
        ]


# Tables that take another one's place.


def test_another_table_under_a_known_name_ends_the_former_ones_rows_and_is_read():
    daemon = Daemon()
    assert daemon.event(9, "public.a")
    assert daemon.facts.all == [
        TableReplaced(table="public.a", former_oid=1, oid=9, truncated=True, read=True)
    ]
    assert daemon.to_read == [(9, "public.a", REPLACED)]
    # THEN that is so once
    assert not daemon.event(9, "public.a")
    assert daemon.listing(a=9, b=2) == []


def test_where_nobody_wants_rows_it_is_said_only():
    daemon = Daemon(reads=False)
    assert daemon.event(9, "public.a")
    assert daemon.facts.all == [
        TableReplaced(table="public.a", former_oid=1, oid=9, truncated=False, read=False)
    ]
    assert daemon.to_read == []


def test_where_truncate_makes_no_records_the_event_does_not_claim_one():
    daemon = Daemon(ends_rows=False)
    assert daemon.event(9, "public.a")
    assert daemon.facts.all == [
        TableReplaced(table="public.a", former_oid=1, oid=9, truncated=False, read=True)
    ]


def test_two_tables_that_swap_their_names_both_take_a_place():
    daemon = Daemon()
    assert daemon.event(1, "public.b")
    assert daemon.event(2, "public.a")
    assert daemon.replaced == [("public.b", 2, 1), ("public.a", 1, 2)]
    assert [oid for oid, _, _ in daemon.to_read] == [1, 2]
    assert daemon.listing(a=2, b=1) == []


def test_a_swap_is_found_by_listing_where_no_event_comes():
    daemon = Daemon()
    assert sorted(daemon.listing(a=2, b=1)) == [1, 2]
    assert sorted(daemon.due()) == [1, 2]
    assert sorted(daemon.replaced) == [("public.a", 1, 2), ("public.b", 2, 1)]
    assert daemon.due() == []
    assert daemon.listing(a=2, b=1) == []


def test_a_name_that_was_freed_by_a_rename_is_still_known():
    daemon = Daemon()
    assert daemon.event(1, "public.c")
    daemon.listing(c=1, b=2)
    assert daemon.event(9, "public.a")
    assert daemon.replaced == [("public.c", 1, 1), ("public.a", 1, 9)]


def test_drop_and_create_is_another_table():
    daemon = Daemon()
    daemon.listing(b=2)
    daemon.due()
    assert daemon.listing(a=9, b=2) == [9]
    assert daemon.due() == [9]
    assert daemon.replaced == [("public.a", 1, 9)]


def test_a_list_counts_when_the_stream_is_past_it():
    daemon = Daemon()
    assert daemon.listing(after=500, a=9, b=2) == [9]
    assert daemon.due(499) == []
    assert daemon.listing(after=600, a=9, b=2) == [], "it is known to be due"
    assert daemon.due(500) == [9]


def test_and_when_the_table_is_described_under_that_name_and_has_its_topic():
    daemon = Daemon()
    tables = daemon.tables
    # GIVEN a table that was described before, under its former name
    tables.listed(Published({2: "public.a"}, 500, {}))
    assert tables.due(READY, lambda oid: True) == []
    tables.looked(2, "public.b")
    assert tables.due(READY, lambda oid: True) == []
    tables.listed(Published({2: "public.a"}, 500, {}))
    tables.looked(2, "public.a")
    assert tables.due(READY, lambda oid: False) == []
    assert tables.due(READY, lambda oid: True) == [2]


def test_what_can_not_be_described_is_listed_again():
    daemon = Daemon()
    daemon.listing(a=9, b=2)
    daemon.tables.forget(9)
    assert daemon.due() == []
    assert daemon.listing(a=9, b=2) == [9]


def test_the_stream_may_say_it_first():
    daemon = Daemon()
    daemon.listing(a=9, b=2)
    assert daemon.event(9, "public.a")
    assert daemon.due() == []
    assert len(daemon.replaced) == 1


# Restarts.


def test_after_a_restart_a_name_that_changed_hands_meanwhile_is_noticed():
    daemon = Daemon().restarted({1: "public.b", 2: "public.a"})
    assert daemon.event(1, "public.b")
    assert daemon.event(2, "public.a")
    assert len(daemon.replaced) == 2


def test_also_where_the_former_table_is_gone():
    daemon = Daemon().restarted({9: "public.a", 2: "public.b"})
    assert daemon.event(9, "public.a")
    assert daemon.replaced == [("public.a", 1, 9)]


def test_the_stream_may_still_call_a_table_by_its_former_name_after_a_restart():
    daemon = Daemon().restarted({1: "public.c", 2: "public.b"})
    assert not daemon.event(1, "public.a")
    assert daemon.replaced == []
    assert daemon.event(1, "public.c")
    daemon.listing(c=1, b=2)
    assert daemon.to_read == [(1, "public.c", REPLACED)]
    assert daemon.added == []


def test_a_table_that_was_added_while_the_daemon_was_away_is_added():
    daemon = Daemon().restarted({**BEFORE, 3: "public.c"})
    daemon.listing(a=1, b=2, c=3)
    assert daemon.to_read == [(3, "public.c", ADDED)]


def test_a_replacement_is_written_down_when_its_transaction_is_delivered_and_not_before():
    daemon = Daemon()
    assert daemon.tables.described(9, "public.a")
    # GIVEN something else that is written down before the transaction is delivered
    daemon.listing(a=9, b=2, c=3)
    daemon = daemon.restarted({9: "public.a", 2: "public.b", 3: "public.c"})
    assert daemon.event(9, "public.a")
    # THEN from there on it is
    daemon = daemon.restarted({9: "public.a", 2: "public.b", 3: "public.c"})
    assert not daemon.event(9, "public.a")


def test_a_record_of_former_versions_knows_no_names():
    daemon = Daemon(progress=Progress(known=Oids((1, 2))))
    assert not daemon.event(1, "public.a")
    daemon.listing(a=1, b=2, c=3)
    assert daemon.added == ["public.c"]
    assert daemon.replaced == []


# A name that nobody had, and what is in its topic.


def test_after_a_restart_it_is_known_who_took_a_free_name_before_a_list_had_the_table():
    # GIVEN a table that was renamed, and a change of it under its new name, which is delivered
    daemon = Daemon()
    assert daemon.event(1, "public.c")
    # WHEN the daemon begins anew before it looks at the publication, and another table has that name by then
    daemon = daemon.restarted({1: "public.d", 2: "public.c"})
    # THEN the rows of the first one are ended there
    assert daemon.event(2, "public.c")
    assert daemon.replaced == [("public.c", 1, 2)]


def test_and_that_the_rest_of_its_rows_is_still_to_be_read():
    daemon = Daemon()
    assert not daemon.event(3, "public.c")
    daemon = daemon.restarted({**BEFORE, 3: "public.c"})
    assert not daemon.event(3, "public.c")
    daemon.listing(a=1, b=2, c=3)
    assert daemon.to_read == [(3, "public.c", ADDED)]
    # THEN that is decided once
    daemon = daemon.restarted({**BEFORE, 3: "public.c"})
    daemon.listing(a=1, b=2, c=3)
    assert daemon.added == []


def test_or_left_out_as_the_configuration_says():
    daemon = Daemon(reads_added=False)
    assert not daemon.event(3, "public.c")
    progress = daemon.incremental.watched.write_down()
    daemon = Daemon({**BEFORE, 3: "public.c"}, progress=progress, reads_added=False)
    daemon.listing(a=1, b=2, c=3)
    assert (daemon.added, daemon.to_read) == (["public.c"], [])


def test_the_name_that_it_left_is_known_after_a_restart_too():
    daemon = Daemon()
    assert daemon.event(1, "public.c")
    daemon = daemon.restarted({1: "public.c", 2: "public.b", 9: "public.a"})
    assert daemon.event(9, "public.a")
    assert [name for name, _, _ in daemon.replaced] == ["public.a"]


def test_a_free_name_is_written_down_when_its_first_event_is_delivered_and_not_before():
    daemon = Daemon()
    assert not daemon.tables.described(3, "public.c")
    daemon.listing(a=1, b=2, c=3, d=4)
    assert daemon.added == ["public.c", "public.d"]
    daemon = Daemon()
    assert daemon.tables.described(1, "public.c")
    daemon.listing(b=2, d=4)
    # THEN a restart in between finds the table under its former name, as the stream will have it again
    daemon = daemon.restarted({1: "public.a", 2: "public.b", 4: "public.d"})
    assert not daemon.event(1, "public.a")
    assert daemon.replaced == []
    assert daemon.to_read == [(4, "public.d", ADDED)]


def test_a_vacated_name_stays_vacated_until_the_truncate_record_is_delivered():
    # GIVEN a name that a table has left, and another one that takes it in a transaction that is not delivered
    daemon = Daemon()
    assert daemon.event(1, "public.c")
    assert daemon.tables.described(9, "public.a")
    # GIVEN something else that is written down
    daemon.listing(b=2, c=1, d=4)
    # WHEN the daemon begins again, and the transaction comes again
    daemon = daemon.restarted({1: "public.c", 2: "public.b", 4: "public.d", 9: "public.a"})
    assert daemon.event(9, "public.a")


def test_a_table_that_lost_its_name_owns_it_no_more():
    # GIVEN half of a swap, and a restart when the names are swapped back
    daemon = Daemon()
    assert daemon.event(1, "public.b")
    daemon = daemon.restarted(BEFORE)
    # THEN both come back to topics that have other rows
    assert daemon.event(2, "public.b")
    assert daemon.event(1, "public.a")


def test_a_table_that_left_the_publication_is_added_again_also_after_a_restart():
    daemon = Daemon()
    daemon.listing(a=1)
    daemon.due()
    daemon = daemon.restarted(BEFORE)
    daemon.listing(a=1, b=2)
    assert daemon.to_read == [(2, "public.b", ADDED)]


# Away and back.


def test_a_table_that_was_renamed_and_renamed_back_is_read_anew_because_changes_went_elsewhere():
    # GIVEN a table with a change under another name
    daemon = Daemon()
    assert daemon.event(1, "public.c")
    # WHEN it has its former name again, before a list saw the other one
    assert daemon.event(1, "public.a")
    # THEN what was deleted meanwhile goes by a truncate record, what was written meanwhile is read, and a fact says so
    assert daemon.facts.all == [
        TableReplaced(table=name, former_oid=1, oid=1, truncated=True, read=True)
        for name in ("public.c", "public.a")
    ]
    # A table is read by its oid, under the name that it has then.
    assert daemon.to_read == [(1, "public.c", REPLACED)]
    assert daemon.listing(a=1, b=2) == []


def test_also_where_no_change_comes_under_the_former_name():
    daemon = Daemon()
    assert daemon.event(1, "public.c")
    assert daemon.listing(a=1, b=2) == [1]
    assert daemon.due() == [1]
    assert daemon.replaced == [("public.c", 1, 1), ("public.a", 1, 1)]
    assert [oid for oid, _, _ in daemon.to_read] == [1]


def test_also_where_the_daemon_was_away_when_it_was_renamed_back():
    daemon = Daemon()
    assert daemon.event(1, "public.c")
    for published in (BEFORE, {1: "public.c", 2: "public.b"}):
        after = daemon.restarted(published)
        assert after.event(1, "public.a")
        after = daemon.restarted(published)
        assert after.listing(a=1, b=2) == [1]
        assert after.due() == [1]
        assert [oid for oid, _, _ in after.to_read] == [1]


def test_the_topic_of_the_name_in_between_has_rows_that_end_when_somebody_takes_it():
    daemon = Daemon()
    assert daemon.event(1, "public.c")
    assert daemon.event(1, "public.a")
    daemon = daemon.restarted({**BEFORE, 3: "public.c"})
    assert daemon.event(3, "public.c")
    assert [name for name, _, _ in daemon.replaced] == ["public.c"]


def test_a_table_without_a_change_under_the_other_name_is_left_alone():
    daemon = Daemon()
    assert not daemon.event(1, "public.a")
    assert daemon.listing(c=1, b=2) == [1]
    daemon.tables.forget(1)
    assert daemon.listing(a=1, b=2) == []
    assert daemon.facts.all == []


def test_where_too_many_names_were_vacated_a_new_one_is_taken_for_one_of_them():
    progress = Progress(known=Oids(BEFORE, BEFORE), vacated=(ANY_NAME,))
    daemon = Daemon({**BEFORE, 3: "public.c", 4: "public.d"}, progress=progress, reads_added=False)
    # WHEN tables come with names of which nothing is known, in the stream and by a list
    assert daemon.event(3, "public.c")
    assert daemon.listing(a=1, b=2, c=3, d=4) == [4]
    assert daemon.due() == [4]
    # THEN they are read, also where tables that are added are not: a topic without rows would lose those of its table
    assert daemon.replaced == [("public.c", 0, 3), ("public.d", 0, 4)]
    assert [oid for oid, _, _ in daemon.to_read] == [3, 4]


# Rows from before a gap.

GAP = Progress(known=Oids(BEFORE, BEFORE), outdated=Oids(BEFORE), waiting=Oids(BEFORE))


def test_former_rows_end_before_the_first_event_of_a_table_and_only_once():
    daemon = Daemon(progress=GAP)
    assert daemon.tables.is_new(1, "public.a")
    assert daemon.event(1, "public.a")
    assert not daemon.tables.is_new(1, "public.a")
    assert not daemon.event(1, "public.a")
    # The table is read anyhow, and nothing took its name.
    assert (daemon.to_read, daemon.facts.all) == ([], [])
    assert daemon.restarted(BEFORE).tables.outdated() == [2]
    assert [daemon.tables.owes_end(oid) for oid in (1, 2)] == [False, True]


def test_or_before_its_rows_are_read_whichever_comes_first():
    daemon = Daemon(progress=GAP)
    assert daemon.listing(a=1, b=2) == [1, 2]
    assert daemon.event(2, "public.b")
    daemon.ready = False
    assert daemon.due(0) == []
    daemon.ready = True
    assert daemon.due(0) == [1]
    assert daemon.due(0) == []
    assert daemon.listing(a=1, b=2) == []
    assert daemon.restarted(BEFORE).tables.outdated() == []


def test_an_end_that_is_decoded_and_not_delivered_comes_again_after_a_restart():
    daemon = Daemon(progress=GAP)
    assert daemon.tables.described(1, "public.a")
    assert daemon.restarted(BEFORE).tables.outdated() == [1, 2]


def test_a_table_that_nobody_could_look_at_is_looked_at_again():
    daemon = Daemon(progress=GAP)
    assert daemon.tables.listed(Published({1: "public.a"}, 500, {})) == [1]
    daemon.tables.forget(1)
    assert daemon.tables.listed(Published({1: "public.a"}, 500, {})) == [1]


def test_former_rows_stay_where_truncates_make_no_records_or_rows_are_nobodys_concern():
    for daemon in (Daemon(progress=GAP, ends_rows=False), Daemon(progress=GAP, reads=False)):
        assert daemon.tables.outdated() == []
        assert not daemon.event(1, "public.a")


def test_a_table_that_cannot_be_read_keeps_its_former_rows():
    progress = Progress(tasks=(TableTask("public.a", 1, number=1),), outdated=Oids(BEFORE))
    assert progress.end(progress.tasks[0], "somebody has locked it").outdated == Oids((2,))
    assert progress.end(progress.tasks[0]).outdated == Oids(BEFORE)

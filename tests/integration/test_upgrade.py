"""Commit 99c61843 and this version on one pipeline: upgrade, rolling upgrade, downgrade, recordings."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.daemon import Daemon, until
from tests.integration.forked import run_cdcd
from tests.integration.former import Pipeline

pytestmark = [pytest.mark.postgres(only=[13, 18]), pytest.mark.upgrade]


@pytest.mark.parametrize("end", [Daemon.stop, Daemon.kill], ids=["stopped", "killed"])
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_this_version_goes_on_with_the_checkpoint_of_the_former_one(
    pipeline: Pipeline, end: Callable[[Daemon], object], delivery: str
):
    # GIVEN a pipeline of the former version, with rows, a snapshot and a transaction that is larger than a batch
    kafka = {"delivery": delivery}
    old = pipeline.start(old=True, kafka=kafka)
    old.await_streaming()
    pipeline.insert(5000)
    pipeline.expect()
    assert pipeline.newest_format() == 1
    end(old)
    pipeline.insert(10)
    # WHEN this version starts
    new = pipeline.start(old=False, kafka=kafka)
    # THEN it goes on, and writes its own format
    pipeline.insert(10)
    pipeline.expect()
    until(lambda: pipeline.newest_format() == 2 or None, "the format stayed 1")
    assert not new.saw("checkpoint.ignored")
    assert new.stop() == 0


def test_a_key_that_comes_with_the_upgrade_is_used_at_once(pipeline: Pipeline):
    old = pipeline.start(old=True)
    old.await_streaming()
    pipeline.insert(3)
    pipeline.expect()
    assert old.stop() == 0
    key = {"checkpoint_key": "k" * 40}
    new = pipeline.start(old=False, topics=key)
    new.await_event("checkpoint.unsigned")
    pipeline.insert(3)
    pipeline.expect()
    assert new.stop() == 0
    again = pipeline.start(old=False, topics=key)
    again.await_streaming()
    pipeline.insert(3)
    pipeline.expect()
    assert not again.saw("checkpoint.unsigned")


def test_a_rolling_upgrade_and_the_former_version_refuses_what_it_does_not_know(pipeline: Pipeline):
    # GIVEN the former version active, and this one standing by
    old = pipeline.start(old=True)
    old.await_streaming()
    new = pipeline.start(old=False)
    new.await_event("standby.waiting")
    pipeline.insert(100)
    pipeline.expect()
    assert not new.saw("stream.started")
    # WHEN the former one ends, THEN this one takes over
    assert old.stop() == 0
    new.await_streaming()
    pipeline.insert(100)
    pipeline.expect()
    # AND the former version stands by, as long as this one is active
    other = pipeline.start(old=True)
    other.await_event("standby.waiting")
    pipeline.insert(100)
    pipeline.expect()
    # AND refuses to go on with a checkpoint that says more than it knows
    assert new.stop() == 0
    assert other.wait() == 6
    assert "has format 2, this cdcd reads 1" in other.output()


def test_after_a_downgrade_the_former_version_goes_on_and_then_this_one_again(pipeline: Pipeline):
    new = pipeline.start(old=False)
    new.await_streaming()
    pipeline.insert(100)
    pipeline.expect()
    file = str(new.config_path)
    refused = run_cdcd("downgrade", "--yes", "--config", file)
    assert refused.returncode == 7, refused.stderr
    assert new.stop() == 0
    shown = run_cdcd("downgrade", "--config", file)
    assert shown.returncode == 0, shown.stderr
    assert pipeline.newest_format() == 2
    done = run_cdcd("downgrade", "--yes", "--config", file)
    assert done.returncode == 0, done.stderr
    assert pipeline.newest_format() == 1
    old = pipeline.start(old=True, snapshot={"mode": "initial"})
    old.await_streaming()
    pipeline.insert(100)
    pipeline.expect()
    assert old.stop() == 0
    again = pipeline.start(old=False)
    again.await_streaming()
    pipeline.insert(100)
    pipeline.expect()
    assert pipeline.newest_format() == 2
    assert again.stop() == 0


def test_a_recording_of_the_former_version_is_replayed(pipeline: Pipeline, tmp_path: Path):
    folder = tmp_path / "recording"
    old = pipeline.start(old=True, record={"directory": str(folder)})
    old.await_streaming()
    pipeline.insert(100)
    pipeline.expect()
    assert old.stop() == 0
    done = run_cdcd("replay", str(folder), "--output", "nothing")
    assert done.returncode == 0, done.stderr
    assert "identical" in done.stderr + done.stdout or "exactly as they were" in done.stderr + done.stdout

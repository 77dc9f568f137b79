"""Two pipelines with one transactional id: the second one does not start, and does not disturb the first."""

from collections.abc import Callable

import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.faults.trial import Trial, command


@pytest.mark.postgres(only=18)
def test_a_start_with_the_id_of_another_pipeline_is_refused_and_disturbs_nobody(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker, unique: str
):
    # GIVEN a pipeline that streams
    first = trial(database.dsn(), broker.bootstrap_servers)
    first.start()
    first.insert(1)
    first.expect(1)
    # WHEN another one is to use its transactional id, THEN check says so and run is refused, by name
    second = trial(
        database.dsn(),
        broker.bootstrap_servers,
        name=f"{unique}_2",
        kafka={"transactional_id": f"cdcd-{unique}"},
    )
    found = second.check().error(f"topic {unique}.checkpoint")
    said = second.fail()
    assert found["code"] == "transaction.id"
    assert said.code == 7
    assert found["found"].split(" has written")[0] in said.message
    assert f"kafka.transactional_id: cdcd-{unique}-2" in said.hint
    # AND the first one goes on
    first.insert(2)
    first.expect(2)
    assert first.daemon.is_running()
    # WHEN the hint is followed, THEN both stream
    second.configure(kafka={"transactional_id": f"cdcd-{unique}-2"})
    second.start()
    second.insert(3)
    second.expect(3)
    first.expect(3)
    second.stop()
    first.stop()


@pytest.mark.postgres(only=18)
def test_a_pipeline_with_a_new_prefix_is_not_taken_for_another_one(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker, unique: str
):
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.start()
    one.insert(1)
    one.expect(1)
    one.stop()
    one.configure(topics={"prefix": f"{unique}_new"})
    one.start()
    assert one.daemon.stop() == 0
    assert "transaction.shared" not in one.daemon.output(all_lives=True)


@pytest.mark.postgres(only=18)
def test_a_command_that_would_end_another_pipeline_by_its_id_is_refused_and_changes_nothing(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker, unique: str
):
    # GIVEN a pipeline that streams, and one that has delivered by an id of its own and is stopped
    first = trial(database.dsn(), broker.bootstrap_servers)
    first.start()
    first.insert(1)
    first.expect(1)
    second = trial(database.dsn(), broker.bootstrap_servers, name=f"{unique}_2")
    second.start()
    second.insert(2)
    second.expect(2)
    second.stop()
    # WHEN it gets the first one's id by mistake, THEN no command writes its checkpoint by that id
    second.configure(kafka={"transactional_id": f"cdcd-{unique}"})
    second.daemon.write_config()
    for arguments in (["reset"], ["reset", "--yes"], ["drop", "--yes"], ["downgrade", "--yes"]):
        said = command(arguments[0], "--config", str(second.daemon.config_path), *arguments[1:])
        assert said.returncode == 7, (arguments, said.stdout, said.stderr)
        assert f"uses the transactional id cdcd-{unique}" in said.stderr
        assert f"kafka.transactional_id: cdcd-{unique}-2" in said.stderr
    assert second.has_slot()
    # AND the first one goes on
    first.insert(3)
    first.expect(2, 3)
    assert first.daemon.is_running()
    assert "fenced" not in first.daemon.output()
    # WHEN the hint is followed, THEN the command works
    second.configure(kafka={"transactional_id": f"cdcd-{unique}-2"})
    second.daemon.write_config()
    said = command("reset", "--config", str(second.daemon.config_path), "--yes")
    assert said.returncode == 0, said.stderr
    first.stop()

from pathlib import Path

from cdcd.config.loading import Config, parse_config
from cdcd.core.engine.logged import LogOwner
from cdcd.daemon.durable_log import has_log, open_log


def configured(folder: Path, durable: str) -> Config:
    return parse_config(
        "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\n"
        f"spool: {{durable: {durable}, durable_directory: {folder}}}\n",
        {},
    )


def test_a_log_that_is_there_counts_also_when_it_is_off_again(tmp_path):
    folder = tmp_path / "log"
    assert open_log(configured(folder, "false")) is None
    assert not folder.exists()
    log = open_log(configured(folder, "true"))
    assert log is not None
    assert not has_log(configured(folder, "true"))
    log.begin(LogOwner("shop", "cdcd_shop", "7", 1, ""), 100, 0)
    log.close()
    assert has_log(configured(folder, "true"))
    log = open_log(configured(folder, "false"))
    assert log is not None
    assert len(log.look().sessions) == 1
    log.close()


def test_a_folder_that_cannot_be_read_is_told_by_who_opens_the_log(tmp_path):
    file = tmp_path / "log"
    file.symlink_to(file)
    assert not has_log(configured(file, "true"))

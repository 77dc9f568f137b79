"""The Dockerfile's images, built and run without an engine."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import yaml

from cdcd import __version__
from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.images import BASE, Images, why_not
from deploy.local import KafkaBroker, PostgresServer, free_port
from tests.deploy.container import Container
from tests.integration.daemon import until

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

SIZE_BYTES_MAX: Final = 150_000_000
MIB: Final = 1024 * 1024
ADDRESS: Final = "https://git.example.com/data/cdcd"


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    with Images() as made:
        yield made


@pytest.fixture(scope="module")
def image(images: Images) -> str:
    return images.build("daemon", VERSION=__version__, REVISION="0123abc", REPOSITORY=ADDRESS)


def test_the_image_is_small(images: Images, image: str) -> None:
    added = images.size_bytes(image) - images.size_bytes(BASE)
    print(f"beyond the base: {added / 1e6:.1f} MB")
    assert added < SIZE_BYTES_MAX


def test_the_image_says_what_it_is_and_runs_the_daemon_without_a_shell_or_root(
    images: Images, image: str
) -> None:
    settings = images.settings(image)
    assert settings["Entrypoint"] == ["/opt/cdcd/bin/cdcd"]
    assert settings["Cmd"] == ["run"]
    assert settings["User"] == "10001:10001"
    assert settings["Volumes"] == {"/var/spool/cdcd": {}}
    assert settings["Healthcheck"]["Test"][0] == "CMD"
    assert settings["Labels"]["org.opencontainers.image.version"] == __version__
    assert settings["Labels"]["org.opencontainers.image.revision"] == "0123abc"
    assert settings["Labels"]["org.opencontainers.image.source"] == ADDRESS
    assert settings["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_the_image_has_no_pip_no_sources_and_nothing_that_its_user_may_write_to(
    images: Images, image: str
) -> None:
    _, root = images.mounted(image)
    assert not list((root / "opt/cdcd").rglob("pip"))
    assert not (root / "src").exists()
    assert not (root / "etc/pip.conf").exists()
    ours = [path for path in (root / "opt").rglob("*") if not path.is_symlink()]
    assert [path for path in ours if path.stat().st_uid != 0 or path.stat().st_mode & 0o022] == []


@pytest.fixture(scope="module")
def postgres(scratch: Path) -> Iterator[PostgresServer]:
    with PostgresServer(18, scratch / "postgres", settings={"logical_decoding_work_mem": "64kB"}) as server:
        yield server


@pytest.fixture(scope="module")
def broker(scratch: Path) -> Iterator[KafkaBroker]:
    with KafkaBroker(scratch / "kafka") as server:
        yield server


def mounted(folder: Path, config: dict[str, Any]) -> Path:
    """A folder to mount at /etc/cdcd."""
    folder.mkdir()
    (folder / "cdcd.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_the_daemon_in_the_image_delivers_and_stops_when_asked(
    images: Images, image: str, scratch: Path, postgres: PostgresServer, broker: KafkaBroker
) -> None:
    # GIVEN a configuration mounted into the container, and little memory for large transactions
    postgres.execute("CREATE TABLE item (id int PRIMARY KEY, note text)")
    port = free_port()
    config = {
        "name": "boxed",
        "postgres": {"dsn": postgres.dsn()},
        "kafka": {"bootstrap_servers": broker.bootstrap_servers},
        "spool": {"memory_bytes_max": MIB},
        "http": {"host": "0.0.0.0"},
    }
    folder = mounted(scratch / "config", config)
    log = scratch / "container.log"
    with Container(images, image, folder, log, {"CDCD_HTTP__PORT": str(port)}) as container:

        def said(event: str) -> bool:
            assert container.is_running(), log.read_text()
            return f'"{event}"' in log.read_text()

        until(lambda: said("stream.started") or None, "never streamed")

        # WHEN a transaction is committed that was spooled, while it was open, to the only place that can be written
        with psycopg.connect(postgres.dsn()) as session:
            session.execute("INSERT INTO item SELECT n, repeat('x', 100) FROM generate_series(1, 50000) AS n")
            until(lambda: said("spool.spilled") or None, "never spooled")

        # THEN every row arrives once
        with Reader(broker.bootstrap_servers, "boxed") as reader:
            keys: list[bytes | None] = []
            deadline = time.monotonic() + 60
            while len(keys) < 50_000 and time.monotonic() < deadline:
                reader.discover()
                keys += [raw.key for raw in reader.poll()]
        assert len(keys) == len(set(keys)) == 50_000

        # AND what runs there is compiled
        assert "(compiled)" in container.execute(["/opt/cdcd/bin/cdcd", "version"])

        # AND it is pid 1, the image's health check finds it well, and SIGTERM ends it in good order
        status = Path(f"/proc/{container.pid}/status").read_text()
        assert [line.split()[-1] for line in status.splitlines() if line.startswith("NSpid")] == ["1"]
        container.execute(images.settings(image)["Healthcheck"]["Test"][1:])
        assert container.terminate(timeout_s=30) == 0, log.read_text()
        assert '"shutdown.finished"' in log.read_text()


READ_BACK: Final = """
from cdcd.config.mirror import load_mirror
from cdcd.mirror.session import catalog_conf, session
place = load_mirror("/etc/cdcd/cdcd.yaml", {}).target
spark = session((place.format,), conf=catalog_conf(place.format, place.catalog, place.location), kafka=False)
row = spark.sql(f"SELECT count(*), count(DISTINCT id), sum(length(note)) FROM {place.catalog}.public.thing").head()
print("read back:", *row)
"""


def test_the_mirror_in_the_spark_image_fills_a_table_with_the_jars_that_it_brings(
    images: Images, scratch: Path, postgres: PostgresServer, broker: KafkaBroker
) -> None:
    # GIVEN topics that the same image's daemon has filled
    image = images.build("spark", VERSION=__version__)
    assert images.settings(image)["Cmd"] == ["mirror"]
    postgres.execute("CREATE TABLE thing (id int PRIMARY KEY, note text)")
    pipeline = mounted(
        scratch / "pipeline",
        {
            "name": "mirrored",
            "postgres": {"dsn": postgres.dsn(), "tables": ["public.thing"]},
            "kafka": {"bootstrap_servers": broker.bootstrap_servers},
            "http": {"port": 0},
        },
    )
    log = scratch / "filling.log"
    with Container(images, image, pipeline, log, {}, arguments=["run"]) as daemon:
        until(lambda: '"stream.started"' in log.read_text() or None, "never streamed")
        postgres.execute("INSERT INTO thing SELECT n, 'abc' FROM generate_series(1, 1000) AS n")
        postgres.execute("DELETE FROM thing WHERE id > 900")
        await_flushed(postgres.dsn(), "cdcd_mirrored", 60)
        assert daemon.terminate(timeout_s=30) == 0, log.read_text()

    # WHEN the mirror runs to where they end, with its tables in the one other place that it may write to
    config = mounted(
        scratch / "mirror",
        {
            "name": "mirrored",
            "kafka": {"bootstrap_servers": broker.bootstrap_servers},
            "target": {"format": "iceberg", "location": "/etc/cdcd/lake"},
        },
    )
    lake = config / "lake"
    lake.mkdir()
    lake.chmod(0o777)
    log = scratch / "mirror.log"
    with Container(images, image, config, log, {}, arguments=["mirror", "--once"]) as mirror:
        assert mirror.wait(timeout_s=180) == 0, log.read_text()

    # THEN the table is the source's
    log = scratch / "read.log"
    read: list[str] = ["/opt/cdcd/bin/python", "-c", READ_BACK]
    with Container(images, image, config, log, {}, entrypoint=read) as reading:
        assert reading.wait(timeout_s=180) == 0, log.read_text()
    assert "read back: 900 900 2700" in log.read_text()

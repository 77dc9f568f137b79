"""One Kafka broker that is its own controller (KRaft), in a folder: start, stop, kill, freeze, restart."""

import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, Self

from deploy.local.cache import LocalServerError, run
from deploy.local.kafka_prepared import (
    STORAGE_SETTINGS,
    cluster_id,
    copy_storage,
    dumping,
    keep_storage,
    prepared,
    sharing,
)
from deploy.local.maven import KAFKA_VERSION, kafka_jars
from deploy.local.process import Child, free_port
from deploy.local.programs import java

_FAILURE: Final = re.compile(r" (?:ERROR|FATAL) |^(?:Caused by|java|org)[\w.]*(?:Exception|Error)\b")

DEFAULT_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "auto.create.topics.enable": "false",
        # One node: there is nobody to replicate to.
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # After SIGKILL the broker is let back in only when its former session has timed out (9 s by default).
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # Nothing is forgotten while a test looks at it.
        "log.retention.ms": "-1",
        # Small files and buffers: many topics, few records, a heap of some hundred MB.
        "log.index.size.max.bytes": "1048576",
        "log.cleaner.dedupe.buffer.size": "16777216",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }
)

_READY: Final = "Kafka Server started"
"""KafkaBroker.STARTED_MESSAGE, logged when the broker has been let into the cluster."""


class KafkaBroker:
    """A broker on 127.0.0.1 with the data of its folder, empty topics list at first.

    With `users` the clients' listener wants SASL and an authorizer refuses what no ACL allows;
    `admin_bootstrap_servers` is then a second listener without either, for the test that sets ACLs.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
        mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN",
        heap_mb: int = 400,
        for_measuring: bool = False,
        cluster: str | None = None,
    ) -> None:
        """`settings` are server.properties, over DEFAULT_SETTINGS; `users` are passwords by name.

        `for_measuring`: the JVM's options are those of Kafka's own start script. A heap that grows is collected several
        times as often, and other brokers are compiled by the JVM's quick compiler only, because they live for minutes.
        `cluster` is the id of the cluster that it belongs to; None: of its own. A broker of several needs `settings`
        for `node.id` and `controller.quorum.voters`; begin all of them before you await one.
        """
        self.data_dir = data_dir.resolve()
        self.port = port or free_port()
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self.users = dict(users or {})
        self.mechanism = mechanism
        self.heap_mb = heap_mb
        self.for_measuring = for_measuring
        self.log_path = self.data_dir.with_name(f"{self.data_dir.name}.log")
        self._controller_port = free_port()
        self._cluster = cluster or cluster_id()
        self._admin_port = free_port()
        self._child: Child | None = None
        self._logged = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def admin_bootstrap_servers(self) -> str:
        """A listener that needs no password and may do everything."""
        return f"127.0.0.1:{self._admin_port}"

    @property
    def pid(self) -> int:
        assert self._child is not None, "the broker was never started"
        return self._child.pid

    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running()

    def start(self, timeout_s: float = 90) -> None:
        """Returns when the broker takes requests; LocalServerError with its log's end when it does not."""
        self.begin()
        self.await_started(timeout_s)

    def begin(self) -> None:
        """Start the process, without waiting."""
        assert not self.is_running(), "the broker is running"
        properties = self._configure()
        options: list[str] = [] if self.for_measuring else sharing(prepare_broker())
        if not (self.data_dir / "log" / "meta.properties").exists():
            self._make_storage(properties)
        self._launch(properties, options)

    def has_started(self) -> bool:
        """Whether it takes requests since it was begun."""
        return _READY in self.log(self._logged)

    def _launch(self, properties: Path, options: Sequence[str]) -> None:
        self._logged = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._child = Child(
            self._java(options, "kafka.Kafka", properties),
            log=self.log_path,
            last_signal=signal.SIGKILL,
            cwd=self.data_dir,
        )

    def await_started(self, timeout_s: float = 90) -> None:
        """Until it takes requests; LocalServerError as `start`."""
        deadline = time.monotonic() + timeout_s
        while not self.has_started():
            if not self.is_running() or time.monotonic() > deadline:
                self.kill()
                log = self.log(self._logged)
                # A broker that gives up shuts down at length: the reason stands before that.
                errors = "".join(line for line in log.splitlines(True) if _FAILURE.search(line))
                raise LocalServerError(
                    f"Kafka {KAFKA_VERSION} did not start:\n{errors[:2000]}\n…\n{log[-2000:]}"
                )
            time.sleep(0.05)

    def stop(self, timeout_s: float = 30) -> None:
        """Shut down in order, and kill it when that takes longer than `timeout_s`."""
        if self._child is None or not self.is_running():
            return
        self._child.signal(signal.SIGCONT)
        self._child.signal(signal.SIGTERM)
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nothing answers, until `resume`."""
        assert self._child is not None, "the broker was never started"
        self._child.signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._child is not None, "the broker was never started"
        self._child.signal(signal.SIGCONT)

    def destroy(self) -> None:
        """Kill it and remove the data folder and the log."""
        self.kill()
        shutil.rmtree(self.data_dir, ignore_errors=True)
        self.log_path.unlink(missing_ok=True)

    def log(self, offset: int = 0) -> str:
        """What it logged, from `offset` bytes on."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")

    def _java(self, options: Sequence[str], main: str, *arguments: str | Path) -> list[str | Path]:
        return [
            java(),
            *options,
            f"-Xms{self.heap_mb}m" if self.for_measuring else "-XX:TieredStopAtLevel=1",
            f"-Xmx{self.heap_mb}m",
            "-XX:+UseSerialGC",
            "-Djava.awt.headless=true",
            # The compression libraries unpack themselves there, and a killed broker leaves them.
            f"-Djava.io.tmpdir={self.data_dir}",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
            # It prints every setting of every component.
            "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
            "-cp",
            f"{kafka_jars()}/*",
            main,
            *arguments,
        ]

    def _make_storage(self, properties: Path) -> None:
        is_usual = all(self.settings.get(name) == DEFAULT_SETTINGS.get(name) for name in STORAGE_SETTINGS)
        if self.mechanism == "PLAIN" and is_usual:
            storage = self.data_dir / "log"
            copy_storage(prepare_broker(), storage, node_id=self.settings["node.id"], cluster=self._cluster)
        else:
            self._format(properties)

    def _format(self, properties: Path) -> None:
        arguments: list[str | Path] = ["format", "--cluster-id", self._cluster, "--config", properties]
        if self.mechanism != "PLAIN":
            for user, password in self.users.items():
                arguments += ["--add-scram", f"{self.mechanism}=[name={user},password={password}]"]
        run(self._java((), "kafka.tools.StorageTool", *arguments))

    def prepare(self, folder: Path) -> None:
        """Fill the folder that other brokers start from, by a start of this one (`kafka_prepared.py`)."""
        properties = self._configure()
        self._format(properties)
        keep_storage(self.data_dir / "log", folder)
        self._launch(properties, dumping(folder))
        self.await_started()
        # It writes the archive when it ends.
        self.stop(120)

    def _configure(self) -> Path:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        listeners = (
            f"CLIENT://127.0.0.1:{self.port},ADMIN://127.0.0.1:{self._admin_port},"
            f"CONTROLLER://127.0.0.1:{self._controller_port}"
        )
        own = {
            "log.dirs": str(self.data_dir / "log"),
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": listeners,
            "advertised.listeners": listeners.rpartition(",")[0],
            "inter.broker.listener.name": "ADMIN",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,ADMIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
            **(self._sasl() if self.users else {}),
            **self.settings,
        }
        path = self.data_dir / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
        return path

    def _sasl(self) -> dict[str, str]:
        prefix = f"listener.name.client.{self.mechanism.lower()}.sasl.jaas.config"
        if self.mechanism == "PLAIN":
            users = " ".join(f'user_{user}="{password}"' for user, password in self.users.items())
            login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        else:
            login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        return {
            "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,ADMIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listener.name.client.sasl.enabled.mechanisms": self.mechanism,
            prefix: login,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }


def prepare_broker() -> Path:
    """Return the folder with the storage and the archive from which brokers start. It is made on first use."""
    return prepared(_prepare)


def _prepare(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cdcd-kafka-") as scratch:
        broker = KafkaBroker(Path(scratch) / "kafka")
        try:
            broker.prepare(folder)
        finally:
            broker.destroy()

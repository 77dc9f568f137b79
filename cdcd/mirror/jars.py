"""The jars that Spark needs for Kafka and the table formats, exactly those that are pinned here.

`spark.jars.packages` would also fetch what the poms name, and Delta's name other versions of what Spark brings
(Hadoop's client, Jackson, the logging): two of a kind on one class path. So each jar is named, nothing is followed, and
its SHA-256 is compared. Ivy, which every pyspark has, does the fetching: no more than Java is needed.

A cluster gets its jars from whoever runs it (`spark-submit --packages`, or an image): `coordinates` names them.
`python -m cdcd.spark.jars` fetches them all beforehand and prints where they are, which is how the image `spark` comes
to have them.

Where Maven's central repository is not within reach, `CDCD_IVY_SETTINGS` names a settings file of Ivy's with a mirror
(what spark.jars.ivySettings is to Spark). A proxy is that of HTTPS_PROXY and NO_PROXY, of which Java itself does not
hear; more of Java's own options, such as those for trust, are read from JDK_JAVA_OPTIONS.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

import pyspark

from cdcd.core.errors import ConfigError, TransientError

KAFKA: Final = "kafka"
AVRO: Final = "avro"
"""Needed for records in Avro only."""
ICEBERG: Final = "iceberg"
DELTA: Final = "delta"

# The token provider is for Kafka's delegation tokens and has not changed in a long time; Spark's Kafka source
# does not load without it.
_PINNED_41: Final = {
    AVRO: {
        "org.apache.spark:spark-avro_2.13:4.1.1":
            "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d",
    },
    KAFKA: {
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3":
            "cb31ffd9c8f5527dba061db8af671d295562092e4f3f5ff42fc249fab8a8fde6",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1":
            "e510adc37b03d01d0a190d0dab472b5538e05eaa77454f7e9477156d7a6820ae",
        "org.apache.kafka:kafka-clients:3.9.1":
            "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
        "org.apache.commons:commons-pool2:2.12.1":
            "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
    },
    ICEBERG: {
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0":
            "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    },
    DELTA: {
        "io.delta:delta-spark_4.1_2.13:4.4.0":
            "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
        "io.delta:delta-storage:4.4.0":
            "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        "io.delta:delta-kernel-api:4.4.0":
            "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
        "io.delta:delta-kernel-defaults:4.4.0":
            "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
        "io.delta:delta-kernel-unitycatalog:4.4.0":
            "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    },
}  # fmt: skip

_PINNED_40: Final = {
    AVRO: {
        "org.apache.spark:spark-avro_2.13:4.0.1":
            "834207b759159ceb7e367df9c0fe5998bbb547fdcdc5269dfeeba2c6803559b6",
    },
    KAFKA: {
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.1":
            "a9c5366a61087e7e7ff903c3dc160e80b33d2ea04d365e0795cc4a58befc3a16",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0":
            "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        "org.apache.kafka:kafka-clients:3.9.1":
            "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
        "org.apache.commons:commons-pool2:2.12.0":
            "6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b",
    },
    ICEBERG: {
        "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1":
            "2192a0881ed0f5773b5a83a8820d2b0b2069beec203028643a1c338551007f09",
    },
    DELTA: {
        "io.delta:delta-spark_2.13:4.0.0":
            "538511702aae0ef6973a6a70af3d4543c9009f8edbed786a00737e2d3cd7f04e",
        "io.delta:delta-storage:4.0.0":
            "9bdb9fb450f1e119eba53feb427f331b0d09072d26485b8273883ad72c9a2e1d",
    },
}  # fmt: skip

_PINNED_35: Final = {
    AVRO: {
        "org.apache.spark:spark-avro_2.12:3.5.7":
            "b0660bc224cbd1eb3ae144001c1328863060e64f1834dd7bbadc1ddbf09d2b15",
    },
    KAFKA: {
        "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7":
            "184f8bd4a3cd22299c49090d88b894f81fd7546b4ee64879519a0d76a685dbb8",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.12:3.5.5":
            "475f1ba3d06afef4ab0ddb9e27f0490c07c1f5870212c7f178e7dfbbc433ec1d",
        "org.apache.kafka:kafka-clients:3.4.1":
            "9d0a9058c8ede79db6e54ae378ed16fe8d1bead2894635a4aa6aa0b7981668c6",
        "org.apache.commons:commons-pool2:2.11.1":
            "ea0505ee7515e58b1ac0e686e4d1a5d9f7d808e251a61bc371aa0595b9963f83",
    },
    ICEBERG: {
        "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0":
            "8dd8c90e54ed1a20f2461309d047a255ee56382eb7c0a46162b27a4936fd86dc",
    },
    DELTA: {
        "io.delta:delta-spark_2.12:3.3.2":
            "4e92085d5d794cf949c50bb665b91384857cad58680c2d0bfc9c7ad353e98e85",
        "io.delta:delta-storage:3.3.2":
            "c096975a2ca97ccc9b4005aa5cce16c9ac3903139d340da6665b66ace67d7c36",
    },
}  # fmt: skip

_PINNED: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "4.1": _PINNED_41,
    "4.0": _PINNED_40,
    "3.5": _PINNED_35,
}
"""By minor version of Spark and by purpose: SHA-256 of each group:artifact:version."""

_JARS: Final = _PINNED.get(".".join(pyspark.__version__.split(".")[:2]), {})
"""The jars of the Spark that is installed."""

_REACH: Final = (
    "Check that repo1.maven.org is within reach. HTTPS_PROXY names a proxy, CDCD_IVY_SETTINGS Ivy's settings with a "
    "mirror; "
    "JDK_JAVA_OPTIONS has -Djavax.net.ssl.trustStore=… for a company's CA."
)

_IVY: Final = """<ivy-module version="2.0">
  <info organisation="cdcd" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""
_DEPENDENCY: Final = '<dependency org="{}" name="{}" rev="{}" conf="default->master" transitive="false"/>'


def coordinates(parts: Iterable[str]) -> list[str]:
    """Maven's names of what `parts` (KAFKA, AVRO, ICEBERG, DELTA) need, for `spark-submit --packages` or an image.

    ConfigError: no jars are pinned for the Spark that is installed.
    """
    return [name for part in parts for name in _of(part)]


def jars(parts: Iterable[str]) -> list[Path]:
    """Return the jars of `parts`, which are downloaded into `$CDCD_CACHE/spark-jars`, else `~/.cache/cdcd/spark-jars`.

    Raises:
        TransientError: Maven's central repository does not have a jar, or did not send it.
        ConfigError: the checksum of a jar differs from the pinned one, or no jars are pinned for the installed Spark.
    """
    cache = os.environ.get("CDCD_CACHE")
    folder = (Path(cache) if cache else Path.home() / ".cache" / "cdcd") / "spark-jars"
    wanted = {name: sha256 for part in parts for name, sha256 in _of(part).items()}
    missing = {name: sha256 for name, sha256 in wanted.items() if not (folder / _file(name)).exists()}
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="partial-") as work:
            _fetch(list(missing), Path(work))
            for name, sha256 in missing.items():
                _take(Path(work) / _file(name), sha256, folder)
    return [folder / _file(name) for name in wanted]


def _of(part: str) -> Mapping[str, str]:
    if part not in _JARS:
        raise ConfigError(
            f"No jars are pinned for Spark {pyspark.__version__}.",
            hint=f"Install one of these versions of pyspark: {', '.join(f'{line}.*' for line in _PINNED)}. "
            "On a cluster, run the job by spark-submit with jars of your own.",
        )
    return _JARS[part]


def _file(name: str) -> str:
    _, artifact, version = name.split(":")
    return f"{artifact}-{version}.jar"


def _take(jar: Path, sha256: str, folder: Path) -> None:
    if not jar.exists():
        raise TransientError(f"{jar.name} could not be fetched.", hint=_REACH)
    with jar.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise ConfigError(
            f"{jar.name} has the SHA-256 {digest}, not {sha256}.",
            hint="Something between here and Maven's repository changed it.",
        )
    # One rename: several processes may be at it at once.
    jar.replace(folder / jar.name)


def _fetch(names: list[str], work: Path) -> None:
    lines = [_DEPENDENCY.format(*map(escape, name.split(":"))) for name in names]
    (work / "ivy.xml").write_text(_IVY.format(dependencies="\n".join(lines)))
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise ConfigError(
            "There is no Java on this machine, and Spark runs on it.",
            hint="Install a Java runtime, 17 or newer, or set JAVA_HOME.",
        )
    pattern = f"{work}/[artifact]-[revision].[ext]"
    settings = os.environ.get("CDCD_IVY_SETTINGS")
    options = ["-settings", settings] if settings else []
    done = subprocess.run(  # noqa: S603 - its arguments are ours
        [
            java,
            *_proxy(os.environ),
            "-jar",
            ivy,
            *options,
            "-ivy",
            work / "ivy.xml",
            "-cache",
            work / "ivy",
            "-retrieve",
            pattern,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        words = (done.stdout + done.stderr).strip()[-1500:]
        raise TransientError(f"Ivy could not fetch {', '.join(names)}:\n{words}", hint=_REACH)


def _proxy(environment: Mapping[str, str]) -> list[str]:
    """Java's words for the proxy that everything else is told by HTTPS_PROXY and NO_PROXY, in either case."""
    given = {name.lower(): value for name, value in environment.items()}
    proxy = urlsplit(given.get("https_proxy", ""))
    if not proxy.hostname:
        return []
    direct = [
        f"*{name}" if name.startswith(".") else name for name in given.get("no_proxy", "").split(",") if name
    ]
    return [
        f"-Dhttps.proxyHost={proxy.hostname}",
        f"-Dhttps.proxyPort={proxy.port or (443 if proxy.scheme == 'https' else 80)}",
        f"-Dhttp.nonProxyHosts={'|'.join(direct)}",
    ]

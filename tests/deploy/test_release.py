"""The workflows, the commands of docs/installing.md, and the compiled wheels on a minimal Debian."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from cdcd import __version__
from deploy.debian import Debian, why_not
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker, PostgresServer, free_port
from deploy.local.cache import REPOSITORY, run
from deploy.release.wheels import VERSIONS, bare_debian, install, interpreters, why_not_bare
from tests.deploy.programs import program
from tests.integration.daemon import until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

WORKFLOWS: Final = sorted((REPOSITORY / ".github" / "workflows").iterdir())
INSTALLING: Final = (REPOSITORY / "docs" / "installing.md").read_text()

needs_debian = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_passes_actionlint(path: Path) -> None:
    run([program("actionlint"), "-no-color", path], cwd=REPOSITORY)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_unless_a_job_says_more_and_calls_targets_that_exist(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    makefile = (REPOSITORY / "Makefile").read_text()
    for name, job in workflow["jobs"].items():
        for step in job["steps"]:
            assert "@" in step.get("uses", "@"), name
            for target in re.findall(r"^make ([a-z -]+)", step.get("run", "")):
                assert all(re.search(rf"^{one}:", makefile, re.MULTILINE) for one in target.split())


def test_cibuildwheel_builds_each_python_from_the_settings_of_the_project() -> None:
    cibuildwheel = pytest.importorskip("cibuildwheel", reason="make deploy-test installs it")
    assert cibuildwheel
    said = run([sys.executable, "-m", "cibuildwheel", "--platform", "linux", "--archs", "x86_64",
                "--print-build-identifiers"], cwd=REPOSITORY)  # fmt: skip
    for version in ("311", "312", "313", "314"):
        for system in ("manylinux", "musllinux"):
            assert f"cp{version}-{system}_x86_64" in said.split()


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pure wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(["env", "CDCD_COMPILE=0", *pip, "--wheel-dir", folder, REPOSITORY])
    (path,) = folder.glob("*.whl")
    return path


def lines_of(heading: str) -> list[str]:
    """The commands of a section of docs/installing.md."""
    section = INSTALLING.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^    (.+)$", section, re.MULTILINE)


@needs_debian
@pytest.mark.parametrize("heading", ["With pip, in an environment of its own", "With pipx", "With uv"])
def test_the_lines_of_the_document_install_cdcd_on_debian_12(heading: str, pure: Path) -> None:
    # GIVEN a minimal Debian 12, and a folder of packages that has the wheel
    with Debian("bookworm") as debian:
        debian.add(pure)
        script = ["set -e", "export PIP_FIND_LINKS=/srv UV_FIND_LINKS=/srv UV_NATIVE_TLS=1", "cd ~"]
        if "uv" in heading:
            script += ["python3 -m venv /opt/uv", "/opt/uv/bin/pip install -q uv", "PATH=/opt/uv/bin:$PATH"]
        if any(line.startswith("apt-get") for line in lines_of(heading)):
            script += ["apt-get -qq update", "export DEBIAN_FRONTEND=noninteractive"]
        # WHEN the lines are run as they are
        said = debian.run("sh", "-c", "\n".join([*script, *lines_of(heading)]))
    # THEN cdcd runs
    assert f"cdcd       {__version__} (pure Python)" in said


@pytest.fixture(scope="module")
def postgres(scratch: Path) -> Iterator[PostgresServer]:
    with PostgresServer(18, scratch / "postgres") as server:
        yield server


@pytest.fixture(scope="module")
def broker(scratch: Path) -> Iterator[KafkaBroker]:
    with KafkaBroker(scratch / "kafka") as server:
        yield server


@pytest.mark.parametrize("version", VERSIONS)
def test_a_compiled_wheel_delivers_where_there_is_no_compiler(
    version: str, postgres: PostgresServer, broker: KafkaBroker, tmp_path: Path
) -> None:
    # GIVEN a minimal Debian with the wheel that `make release` built for its Python, and the locked dependencies
    tag = "cp" + version.replace(".", "")
    wheels = list((REPOSITORY / "dist").glob(f"cdcd-{__version__}-{tag}-{tag}-manylinux*.whl"))
    if not wheels:
        pytest.skip(f"dist/ has no wheel for Python {version} (make release PARTS=source,wheels)")
    here = interpreters().get(version)
    if reason := why_not_bare(version, here):
        pytest.skip(reason)
    name = f"wheel{version.replace('.', '')}"
    postgres.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)")
    with bare_debian(version, here) as (debian, python):
        install(debian, python, wheels[0])
        assert "(compiled)" in debian.run("/opt/cdcd/bin/cdcd", "version")
        config = {
            "name": name,
            "postgres": {"dsn": postgres.dsn(), "tables": [f"public.{name}"]},
            "kafka": {"bootstrap_servers": broker.bootstrap_servers},
            "http": {"port": free_port()},
        }
        (debian.root / "srv" / "cdcd.yaml").write_text(yaml.safe_dump(config))

        # WHEN its daemon runs, and 10,000 rows are written
        log = tmp_path / "log"
        with log.open("wb") as output:
            command = debian.command("/opt/cdcd/bin/cdcd", "run", "--config", "/srv/cdcd.yaml")
            daemon = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            until(lambda: '"stream.started"' in log.read_text() or None, "never streamed")
            postgres.execute(
                f"INSERT INTO {name} SELECT n, repeat('x', 100) FROM generate_series(1, 10000) AS n"
            )
            keys = keys_of(broker, name, 10_000)
        finally:
            daemon.terminate()
            code = daemon.wait(60)

    # THEN each arrives once, the daemon reports that it is compiled, and SIGTERM ends the daemon in good order
    assert len(keys) == len(set(keys)) == 10_000
    assert code == 0, log.read_text()
    assert '"compiled": true' in log.read_text()


def keys_of(broker: KafkaBroker, prefix: str, count: int) -> list[bytes | None]:
    keys: list[bytes | None] = []
    deadline = time.monotonic() + 120
    with Reader(broker.bootstrap_servers, prefix) as reader:
        while len(keys) < count and time.monotonic() < deadline:
            reader.discover()
            keys += [raw.key for raw in reader.poll()]
    return keys

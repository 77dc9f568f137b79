"""Commands that print secrets: what they print, how they fail, and what is shown of it."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from cdcd.adapters.credentials.command import (
    OUTPUT_BYTES_MAX,
    SAID_LENGTH_MAX,
    Command,
    await_output,
    output_of,
)
from cdcd.core.errors import CdcdError, ConfigError, TransientError

KEY = "postgres.password_command"


def command(*arguments: str, timeout_s: float = 20) -> Command:
    return Command(KEY, arguments, timeout_s)


def python(program: str, *arguments: str, timeout_s: float = 20) -> Command:
    return command(sys.executable, "-c", program, *arguments, timeout_s=timeout_s)


def test_the_secret_is_what_is_printed_without_the_lines_end():
    assert output_of(command("echo", "s3cret")) == "s3cret"
    assert output_of(command("printf", " a b \r\n")) == " a b "


def test_there_is_no_shell():
    assert output_of(command("echo", "$HOME `id` ; true")) == "$HOME `id` ; true"


def test_a_program_that_is_not_there_is_an_error_of_the_configuration(tmp_path: Path):
    file = tmp_path / "plain"
    file.write_text("text")
    for program in (str(tmp_path / "none"), str(file)):
        with pytest.raises(ConfigError, match=f"{KEY}: {program} cannot be run") as caught:
            output_of(command(program))
        assert "no shell" in caught.value.hint


def test_a_failure_shows_the_end_of_what_was_said_and_no_secret():
    secret = "eyJhbGciOiJub25lIn0eyJzdWIiOiJjZGNkIn0"
    program = (
        "import sys; print('printed5ecret'); "
        "sys.stderr.write('x ' * 4000 + 'PGPASSWORD=hunter2 password=hunter2 '); "
        f"sys.stderr.write('token {secret} printed5ecret not found\\n'); "
        "sys.exit(3)"
    )
    with pytest.raises(TransientError) as caught:
        output_of(python(program))
    said = str(caught.value)
    assert f"{KEY}: {sys.executable} ended with exit code 3: … " in said
    assert said.partition(" Hint: ")[0].endswith("not found")
    assert len(caught.value.message) < SAID_LENGTH_MAX + len(sys.executable) + 80
    for hidden in (secret, "printed5ecret", "hunter2"):
        assert hidden not in said
    assert "by hand" in caught.value.hint


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("pass", "printed nothing"),
        ("print('  ')", "printed nothing"),
        ("import os; os.write(1, b'\\xff')", "not UTF-8"),
        (f"print('x' * {OUTPUT_BYTES_MAX + 2})", f"more than {OUTPUT_BYTES_MAX} bytes"),
        ("import os; os.kill(os.getpid(), 15)", "was ended by signal 15"),
    ],
)
def test_what_is_no_secret_is_refused(program: str, says: str):
    with pytest.raises(TransientError, match=says):
        output_of(python(program))


def wait_for(file: Path) -> str:
    deadline = time.monotonic() + 120
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"nothing in {file}"
        time.sleep(0.01)
    return file.read_text().strip()


def is_running(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


CHILD = (
    "import subprocess, sys; child = subprocess.Popen(['sleep', '600']); "
    "open(sys.argv[1], 'w').write(f'{child.pid}\\n'); child.wait()"
)


def await_end(pid: int) -> None:
    deadline = time.monotonic() + 120
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} runs on"
        time.sleep(0.01)


def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path):
    file = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(TransientError, match=r"did not end within 10 s"):
        output_of(python(CHILD, str(file), timeout_s=10))
    assert time.monotonic() - began < 60
    await_end(int(wait_for(file)))


def test_a_cancelled_wait_kills_the_command(tmp_path: Path):
    file = tmp_path / "pid"

    async def run() -> None:
        waiting = asyncio.create_task(await_output(python(CHILD, str(file), timeout_s=600)))
        await asyncio.to_thread(wait_for, file)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    asyncio.run(run())
    await_end(int(file.read_text()))


AFTER_A_FILE = (
    "import pathlib, sys, time; file = pathlib.Path(sys.argv[1])\nwhile not file.exists(): time.sleep(0.01)"
)


def test_the_event_loop_goes_on_meanwhile(tmp_path: Path):
    async def run() -> str:
        file = tmp_path / "go on"
        waiting = asyncio.create_task(await_output(python(f"{AFTER_A_FILE}\nprint('x')", str(file))))
        for _ in range(10):
            await asyncio.sleep(0.01)
        # The command waits for what the loop does meanwhile.
        file.touch()
        return await waiting

    assert asyncio.run(run()) == "x"


def test_no_descriptor_is_left_open():
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for wrong in (command("false"), command("sleep", "60", timeout_s=0.1)):
        with pytest.raises(CdcdError):
            output_of(wrong)
    assert output_of(command("echo", "x")) == "x"
    assert count() <= before


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("the vault is sealed", "the vault is sealed"),
        (
            "An error occurred (AccessDenied) when calling AssumeRole",
            "An error occurred (AccessDenied) when calling AssumeRole",
        ),
        ("/usr/bin/aws: not found", "/usr/bin/aws: not found"),
        ("HTTP 403, password is required", "HTTP 403, password is required"),
        ("token swordfish is invalid", "token *** is invalid"),
        ("no credentials: password=x7, KEY=x8", "no credentials: password=*** KEY=***"),
        ("token a1 b2 c3", "token ***"),
        ("no such role 'app team'", "no such role ***"),
    ],
)
def test_of_what_a_command_says_ordinary_words_are_shown(said: str, shown: str):
    program = f"import sys; sys.stderr.write({said!r}); sys.exit(3)"
    with pytest.raises(TransientError) as caught:
        output_of(command(sys.executable, "-c", program))
    assert caught.value.message.endswith(f"ended with exit code 3: {shown}")

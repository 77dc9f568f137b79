"""Secrets that others can read, replace or guess."""

import os
import random
from base64 import b64encode
from pathlib import Path

import pytest

from cdcd.adapters.credentials.weaknesses import mirror_weaknesses, refuse_weaknesses, weak_token, weaknesses
from cdcd.config.loading import Config, load_config, parse_config
from cdcd.config.mirror import parse_mirror
from cdcd.core.errors import ConfigError

TOKEN = "9f3c1d7a40b8e625"
KEY = b64encode(random.Random(7).randbytes(32)).decode()


def configured(**keys: str) -> Config:
    """A configuration with these keys besides, or in place of, those that every one has."""
    known = {"name": "shop", "postgres": "{dsn: host=db}", "kafka": "{bootstrap_servers: 'b:1'}"}
    return parse_config("\n".join([f"{key}: {value}" for key, value in (known | keys).items()]), {})


def secret_file(folder: Path, mode: int = 0o600, text: str = TOKEN) -> Path:
    file = folder / "token"
    file.write_text(text)
    file.chmod(mode)
    return file


def of_file(file: Path) -> list[str]:
    return [each.found for each in weaknesses(configured(http=f"{{token_file: {file}}}"))]


@pytest.mark.parametrize("mode", [0o644, 0o666, 0o604, 0o602, 0o660, 0o601, 0o606])
def test_a_file_that_others_may_read_or_change_is_a_weakness(tmp_path: Path, mode: int):
    assert f"mode {mode:04o}" in of_file(secret_file(tmp_path, mode))[0]


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_of_the_daemons_user_alone_is_in_order(tmp_path: Path, mode: int):
    assert not of_file(secret_file(tmp_path, mode))


@pytest.mark.parametrize(("owner", "mode", "word"), [(0, 0o640, ""), (0, 0o660, "mode"), (0, 0o644, "mode")])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_root_may_be_readable_by_a_group_as_in_containers(
    tmp_path: Path, owner: int, mode: int, word: str
):
    file = secret_file(tmp_path, mode)
    os.chown(file, owner, -1)
    assert [word in each for each in of_file(file)] == ([True] if word else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_a_weakness(tmp_path: Path):
    file = secret_file(tmp_path)
    os.chown(file, 12345, -1)
    assert of_file(file) == [f"{file} belongs to another user (uid 12345)"]


@pytest.mark.parametrize(("mode", "weak"), [(0o777, True), (0o1777, True), (0o757, True), (0o755, False)])
def test_a_file_in_a_folder_that_everybody_may_change_is_a_weakness(tmp_path: Path, mode: int, weak: bool):
    folder = tmp_path / "open"
    folder.mkdir()
    file = secret_file(folder)
    folder.chmod(mode)
    assert of_file(file) == ([f"{file} is in {folder}, which every user may change"] if weak else [])


def test_a_folder_above_counts_unless_it_is_sticky(tmp_path: Path):
    above = tmp_path / "above"
    (above / "own").mkdir(parents=True)
    file = secret_file(above / "own")
    above.chmod(0o1777)
    assert not of_file(file)
    above.chmod(0o777)
    assert of_file(file) == [f"{file} is in {above}, which every user may change"]


def test_a_link_is_as_weak_as_its_file_and_as_its_own_folder(tmp_path: Path):
    (tmp_path / "open").mkdir()
    link = tmp_path / "open" / "link"
    link.symlink_to(secret_file(tmp_path))
    assert not of_file(link)
    (tmp_path / "open").chmod(0o777)
    assert "every user may change" in of_file(link)[0]


def test_every_file_with_a_secret_is_looked_at(tmp_path: Path):
    file = secret_file(tmp_path, 0o644, KEY)
    config = configured(
        http=f"{{token_file: {file}, read_token_file: {file}, key_file: {file}, certificate_file: {file}}}",
        columns=f"{{hash_key_file: {file}, encryption_key_file: {file}}}",
        topics=f"{{checkpoint_key_file: {file}}}",
        snapshot=f"{{signal_token_file: {file}}}",
        context=f"{{enabled: true, token_file: {file}}}",
        registry=f"{{url: 'http://r', token_file: {file}, key_file: {file}, certificate_file: {file}}}",
        postgres=f"{{dsn: host=db, readers: [{{tables: ['a.*'], user: r, password_file: {file}}}]}}",
    ).model_copy()
    config.kafka.properties_files["sasl.password"] = file
    config.kafka.properties["ssl.key.location"] = str(file)
    assert {each.key for each in weaknesses(config) if each.of_file} == {
        "http.token_file",
        "http.read_token_file",
        "http.key_file",
        "columns.hash_key_file",
        "columns.encryption_key_file",
        "topics.checkpoint_key_file",
        "snapshot.signal_token_file",
        "context.token_file",
        "registry.token_file",
        "registry.key_file",
        "postgres.readers[0].password_file",
        "kafka.properties_files.sasl.password",
        "kafka.properties.ssl.key.location",
    }


def test_every_key_and_token_is_looked_at():
    weak = "a" * 40
    config = configured(
        http=f"{{token: {weak}, read_token: {weak}, tokens: 'ann {weak}'}}",
        columns=f"{{hash_key: {weak}, former_keys: [{weak}]}}",
        topics=f"{{checkpoint_key: {weak}}}",
        snapshot=f"{{signal_token: {weak}}}",
        context=f"{{enabled: true, token: {weak}}}",
        registry=f"{{url: 'http://r', token: {weak}}}",
        postgres="{dsn: host=db, password: short}",
    )
    assert {each.key for each in weaknesses(config)} == {
        "http.token",
        "http.read_token",
        "http.tokens (ann)",
        "columns.hash_key",
        "columns.former_keys[0]",
        "topics.checkpoint_key",
        "snapshot.signal_token",
        "context.token",
        "registry.token",
    }


@pytest.mark.parametrize(
    "raw",
    [
        bytes(32),
        b"a" * 32,
        b"\xff" * 32,
        bytes(range(32)),
        bytes(range(64, 32, -1)),
        b"ab" * 16,
        random.Random(1).randbytes(16) * 2,
        bytes(random.Random(2).choices(range(12), k=32)),
    ],
)
def test_an_encryption_key_that_is_not_random_is_weak(raw: bytes):
    config = configured(columns=f"{{encryption_key: '{b64encode(raw).decode()}'}}")
    (found,) = weaknesses(config)
    assert (found.of_file, found.key) == (False, "columns.encryption_key")


@pytest.mark.parametrize(
    "token",
    [
        "a" * 16,
        "a" * 64,
        "aaaaaaaaaaaaaaab",
        "0123456789abcdef",
        "abcdefghijklmnopqrstuvwxyz",
        "abcabcabcabcabcabc",
        "changemechangeme",
        "password12345678",
        "secret-token-cdcd",
        "x7Qp3z",
    ],
)
def test_a_token_that_can_be_guessed_is_weak(token: str):
    assert weak_token(token)


def test_random_keys_and_tokens_are_not_weak():
    draw = random.Random(43)
    for _ in range(2000):
        assert not weak_token(draw.randbytes(32).hex())
        config = configured(columns=f"{{encryption_key: '{b64encode(draw.randbytes(32)).decode()}'}}")
        assert not weaknesses(config)


def test_no_weakness_shows_the_secret():
    for secret in ("zq" * 12, "k" * 20):
        config = configured(http=f"{{token: {secret}}}", columns=f"{{hash_key: {secret}}}")
        found = weaknesses(config)
        assert {each.key for each in found} == {"http.token", "columns.hash_key"}
        assert secret[:4] not in repr(found)


def test_strict_refuses_every_weakness_at_once_and_without_it_the_start_goes_on(tmp_path: Path):
    file = secret_file(tmp_path, 0o644)
    keys = {"http": f"{{token_file: {file}}}", "columns": f"{{hash_key: {'h' * 16}}}"}
    refuse_weaknesses(configured(**keys))
    with pytest.raises(ConfigError) as caught:
        refuse_weaknesses(configured(**keys, security="{strict: true}"))
    assert str(file) in caught.value.message
    assert "columns.hash_key" in caught.value.message
    assert caught.value.exit_code == 2
    assert "mode 0600" in caught.value.hint
    refuse_weaknesses(configured(security="{strict: true}"))


@pytest.mark.parametrize(
    ("dsn", "more", "weak"),
    [
        ("host=db password=x9", "", True),
        ("postgresql://u:x9@db/shop", "", True),
        ("host=db", "", False),
        ("${DSN}", "", False),
        ("host=db", "http: {token: 9f3c1d7a40b8e625}\n", True),
        ("host=db", "http: {token: '${TOKEN}'}\n", False),
        ("host=db", "columns: {hash_key: 9f3c1d7a40b8e625}\n", True),
    ],
)
def test_a_configuration_with_a_secret_in_it_is_such_a_file_too(
    tmp_path: Path, dsn: str, more: str, weak: bool
):
    file = tmp_path / "cdcd.yaml"
    file.write_text(f"name: shop\npostgres: {{dsn: '{dsn}'}}\nkafka: {{bootstrap_servers: 'b:1'}}\n{more}")
    file.chmod(0o644)
    config = load_config(file, {"DSN": "host=db password=x9", "TOKEN": TOKEN})
    assert [each.key for each in weaknesses(config)] == (["configuration"] if weak else [])
    file.chmod(0o600)
    assert not weaknesses(load_config(file, {"DSN": "host=db password=x9", "TOKEN": TOKEN}))


def test_the_files_and_the_token_of_a_mirror_are_examined_too(tmp_path: Path) -> None:
    names = ("read_token", "jaas")
    files = [tmp_path / name for name in names]
    for file, text in zip(files, ("passwordpassword1", "user and password"), strict=True):
        file.write_text(text)
        file.chmod(0o644)
    text = (
        "name: shop\ntarget: {location: /lake}\n"
        f"http: {{read_token_file: {files[0]}}}\n"
        f"kafka: {{bootstrap_servers: 'b:1', properties_files: {{sasl.jaas.config: {files[1]}}}}}\n"
    )
    found = mirror_weaknesses(parse_mirror(text, {}))
    assert [(each.key, each.of_file) for each in found] == [
        ("http.read_token_file", True),
        ("kafka.properties_files.sasl.jaas.config", True),
        ("http.read_token", False),
    ]
    assert not any("passwordpassword1" in each.found + each.fix for each in found)
    for file in files:
        file.chmod(0o600)
    files[0].write_text(TOKEN + KEY[:20])
    assert mirror_weaknesses(parse_mirror(text, {})) == []

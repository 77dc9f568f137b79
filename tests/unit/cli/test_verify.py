import pytest

from cdcd.cli.__main__ import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said of options that do not go together, before a file is looked at."""
    with pytest.raises(SystemExit) as caught:
        main(["verify", "--config", "cdcd.yaml", *arguments])
    assert caught.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_mirror_needs_its_configuration(capsys: pytest.CaptureFixture[str]):
    assert "--target mirror needs --mirror FILE" in refused(capsys, "--target", "mirror")
    assert "--mirror works only with --target mirror" in refused(capsys, "--mirror", "mirror.yaml")


@pytest.mark.parametrize(
    "option",
    [("--since", "0/1"), ("--sample", "5"), ("--continuous",), ("--directory", "."), ("--port", "1")],
)
def test_options_of_the_topics_are_refused_for_a_mirror(
    capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
):
    said = refused(capsys, "--target", "mirror", "--mirror", "mirror.yaml", *option)
    assert f"{option[0]} works only with --target topics" in said


def test_repair_of_a_mirror_is_refused_with_the_command_that_reads_a_table_again(
    capsys: pytest.CaptureFixture[str],
):
    said = refused(capsys, "--target", "mirror", "--mirror", "mirror.yaml", "--repair")
    assert "cdcd mirror --config mirror.yaml --snapshot SCHEMA.TABLE --source cdcd.yaml" in said

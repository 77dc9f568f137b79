"""The memory limit of control groups, in both versions."""

from pathlib import Path

from cdcd.daemon.memory_limit import memory_limit

MIB = 1 << 20


def written(root: Path, own: str, **limits: str) -> tuple[Path, Path]:
    """The list of this process's groups, and the root of all groups."""
    (root / "own").write_text(own)
    for name, limit in limits.items():
        file = root / name.replace("__", "/").replace("_max", ".max").replace("memory_limit", "memory.limit")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit + "\n")
    return root / "own", root


def test_a_container_sees_its_own_group_at_the_root(tmp_path):
    assert memory_limit(*written(tmp_path, "0::/\n", memory_max=str(512 * MIB))) == 512 * MIB


def test_a_service_has_the_lowest_limit_of_its_groups(tmp_path):
    own, root = written(
        tmp_path,
        "0::/system.slice/cdcd.service\n",
        system__memory_max="max",
        **{
            "system.slice__memory_max": str(300 * MIB),
            "system.slice__cdcd.service__memory_max": str(400 * MIB),
        },
    )
    assert memory_limit(own, root) == 300 * MIB


def test_in_version_1_the_controller_of_memory_counts(tmp_path):
    own, root = written(
        tmp_path,
        "9:cpu:/other\n8:memory:/cdcd\n",
        memory__memory_limit_in_bytes=str(1 << 62),
        memory__cdcd__memory_limit_in_bytes=str(200 * MIB),
        memory__other__memory_limit_in_bytes=str(MIB),
    )
    assert memory_limit(own, root) == 200 * MIB


def test_a_group_that_is_named_as_outside_of_the_container_is_passed_over(tmp_path):
    own, root = written(tmp_path, "0::/../../kubepods/pod7\n", memory_max=str(64 * MIB))
    assert memory_limit(own, root) == 64 * MIB


def test_groups_without_a_limit_have_no_limit(tmp_path):
    assert memory_limit(*written(tmp_path, "0::/\n", memory_max="max")) is None
    assert memory_limit(tmp_path / "missing", tmp_path / "missing") is None

"""A broker's storage is copied as that of its node, of its cluster, and of no other folder."""

from pathlib import Path

from deploy.local.kafka_prepared import copy_storage, keep_storage


def properties(storage: Path) -> dict[str, str]:
    lines = (storage / "meta.properties").read_text().splitlines()
    return dict(line.split("=") for line in lines if "=" in line)


def test_two_nodes_of_a_cluster_get_the_same_storage_under_names_of_their_own(tmp_path: Path):
    formatted, folder = tmp_path / "formatted", tmp_path / "prepared"
    formatted.mkdir()
    (formatted / "meta.properties").write_text("#\nversion=1\nnode.id=1\ndirectory.id=d\ncluster.id=c\n")
    (formatted / "bootstrap.checkpoint").write_bytes(b"content")
    keep_storage(formatted, folder)
    found = []
    for node in ("1", "2"):
        storage = tmp_path / node
        copy_storage(folder, storage, node_id=node, cluster="shared")
        assert (storage / "bootstrap.checkpoint").read_bytes() == b"content"
        found.append(properties(storage))
    one, two = found
    assert (one["node.id"], two["node.id"]) == ("1", "2")
    assert one["cluster.id"] == two["cluster.id"] == "shared"
    assert one["directory.id"] != two["directory.id"]
    assert one["version"] == "1"

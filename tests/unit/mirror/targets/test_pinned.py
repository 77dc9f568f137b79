import pytest

from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.targets.pinned import Tag, tagged_lsn


@pytest.mark.parametrize(
    ("lsn", "name"), [("0/16B3748", "lsn-0-16B3748"), ("FFFFFFFF/0", "lsn-FFFFFFFF-0"), ("2/AB", "lsn-2-AB")]
)
def test_a_tag_is_named_by_its_lsn(lsn: str, name: str):
    commit_lsn = int(Lsn.parse(lsn))
    assert Tag(commit_lsn, 0).name == name
    assert tagged_lsn(name) == commit_lsn


@pytest.mark.parametrize("name", ["release-1", "lsn-", "lsn-0-16b", "lsn-0", "lsn-000000001-0", "my-lsn-0-1"])
def test_a_tag_of_somebody_else_is_none_of_the_mirrors(name: str):
    assert tagged_lsn(name) is None

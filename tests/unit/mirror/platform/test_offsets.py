import pytest

from cdcd.core.errors import ProtocolError
from cdcd.mirror.platform.offsets import read_ends

LOG = 'v1\n{"batchWatermarkMs":0}\n{"shop.public.orders":{"1":7,"0":12},"shop.public.x":{"0":0}}'


def test_the_ends_of_a_batch_are_read_from_sparks_log():
    assert read_ends(LOG, "p") == {"shop.public.orders": {1: 7, 0: 12}, "shop.public.x": {0: 0}}


@pytest.mark.parametrize(
    "text",
    ["", "v2\n{}\n{}", "v1\n{}", "v1\n{}\n{}\n{}", "v1\n{}\n-", 'v1\n{}\n["a"]', 'v1\n{}\n{"a":{"b":1}}'],
)
def test_a_log_of_another_form_is_refused(text: str):
    with pytest.raises(ProtocolError, match="offset log"):
        read_ends(text, "p")

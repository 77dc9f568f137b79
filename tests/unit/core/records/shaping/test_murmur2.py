import pytest

from cdcd.core.records.shaping.murmur2 import positive_murmur2


@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        # UtilsTest.java of Kafka, testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_java_client(data, hashed):
    assert positive_murmur2(data) == hashed & 0x7FFFFFFF


def test_bytes_above_127_and_no_bytes_have_a_hash():
    assert positive_murmur2(b"") == 275646681
    assert 0 <= positive_murmur2(bytes(range(128, 256))) < 2**31

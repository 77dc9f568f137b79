"""Failures that are known by their kind."""

import errno

from cdcd.core.errors import LimitError, TransientError, cause, out_of_files


def test_exhausted_descriptors_are_a_limit_with_the_key_that_raises_it():
    for number, words in ((errno.EMFILE, "this process"), (errno.ENFILE, "all processes of this machine")):
        found = out_of_files(OSError(number, "Too many open files"))
        assert isinstance(found, LimitError)
        assert words in found.message
        assert "LimitNOFILE" in found.hint
    assert out_of_files(OSError(errno.ENOSPC, "No space left on device")) is None
    assert out_of_files(ValueError()) is None


def test_exhausted_descriptors_are_told_before_what_passes():
    full = OSError(errno.EMFILE, "Too many open files")
    assert cause(ExceptionGroup("", [TransientError("away"), full])) is full

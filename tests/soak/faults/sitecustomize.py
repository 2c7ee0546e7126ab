"""Faults of a disk for every Python process that has this folder on its path.

ALLRANKS_TEST_FSYNC="EIO 2 5": the second to fifth fsync of a process fail so; "slow 0.5": each takes that
many seconds.
"""

import errno
import os
import time

_real, _words = os.fsync, os.environ.get("ALLRANKS_TEST_FSYNC", "").split()
_calls = 0


def _faulty(descriptor):
    global _calls
    _calls += 1
    if _words[0] == "slow":
        time.sleep(float(_words[1]))
    elif int(_words[1]) <= _calls <= int(_words[2]):
        raise OSError(getattr(errno, _words[0]), os.strerror(getattr(errno, _words[0])))
    return _real(descriptor)


if _words:
    os.fsync = _faulty

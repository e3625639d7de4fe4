"""Figures of ranks that wait, and of ranks that have to share their cores: `late`, `idle`, `hog`."""

import subprocess
import sys
from functools import lru_cache, partial

import measured
from measured import in_turn, row


@lru_cache
def _shares():
    """What `rank_waits.py` finds, in % of a core."""
    found = measured.python("rank_waits.py")
    return {what: [100 * share for share in rounds] for what, rounds in found.items()}


def of_late():
    """The processor time of a rank that waits for one that is late, as a share of the time that it waits."""
    for seconds, text in ((0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"), (2.0, "2 s")):
        yield row(f"waiting for a rank that is {text} late", "% of a core", _shares()[f"late {seconds}"], asked=10)


def of_idle():
    """The processor time of what has nothing to do."""
    shares = _shares()
    yield row("waiting in a call for 2 s", "% of a core", shares["late 2.0"])
    yield row("in no call: the monitor", "% of a core", shares["no call"])
    yield row("in no call: monitor and progress thread", "% of a core", shares["progress thread"])


def _beside_a_hog():
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return measured.rust("each")
    finally:
        hog.kill()
        hog.wait()


def of_hog():
    """Calls of 8 bytes beside a process that computes all the time, bound to no core."""
    found = in_turn(5, {"alone": partial(measured.rust, "each"), "beside a hog": _beside_a_hog})
    for name, launches in found.items():
        for what in ("median", "p99", "mean"):
            asked = 3 if (name, what) == ("beside a hog", "median") else None
            yield row(f"8 B {name}, {what}", "us", [each[what] for each in launches], asked)

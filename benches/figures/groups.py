"""Figures of groups: `groups`, and of calls beside each other in one: `beside`."""

import re

import measured
from measured import row

WORDS = re.compile(
    r"small: first ([\d.]+) us \(worst ([\d.]+)\), all ([\d.]+) us, alone ([\d.]+) us; large: ([\d.]+) us, alone ([\d.]+) us"
)


def of_groups():
    """Making groups of two ranks, and what they take."""
    found = measured.python("rank_groups.py")
    yield row("new_group", "us", found["make"])
    yield row("first call of 8 B on a group: the ranks meet", "us", found["first call"])
    yield row("second call", "us", found["second call"])
    yield row("destroy", "us", found["destroy"])
    yield row("memory of a group and rank after calls of 8 B", "KiB", found["KiB small"])
    yield row("memory of a group and rank after a call of 4 MiB", "KiB", found["KiB large"], asked=16 << 10)
    yield row("memory left of a group and rank after destroy", "KiB", found["KiB left"])


def of_beside():
    """Named calls of 8 bytes while one of 64 MiB is in flight on the same group."""
    launches = []
    for _ in range(3):
        program = [measured.TARGET / "examples/beside_bench", 64 << 20, 8]
        text = measured.output([measured.TARGET / "foldcast", "run", "-n", 2, "--", *program])
        match = WORDS.search(text)
        if not match:
            raise measured.Failed(f"no figures in {text!r}")
        launches.append([float(value) for value in match.groups()])
    first, worst, every, alone, large, large_alone = zip(*launches)
    yield row("8 B submitted behind 64 MiB: the first", "us", first)
    yield row("8 B submitted behind 64 MiB: the worst first of 30", "us", worst)
    yield row("8 B submitted behind 64 MiB: all", "us", every)
    yield row("8 B submitted, alone", "us", alone)
    yield row("64 MiB with four of 8 B behind it", "us", large)
    yield row("64 MiB alone", "us", large_alone)

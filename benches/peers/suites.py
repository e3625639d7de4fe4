"""What is measured."""

from collections import namedtuple

KIB, MIB = 1 << 10, 1 << 20
SIZES = [8, KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]

Case = namedtuple("Case", "bytes dtype op mode")
# kind: who takes part, "native" or "python"
Suite = namedtuple("Suite", "name title ranks dirty kind cases")


def _cases(sizes, dtype="f32", mode="out"):
    return [Case(size, dtype, "sum", mode) for size in sizes]


_HALF = _cases([MIB, 64 * MIB], "f16") + _cases([MIB, 64 * MIB], "bf16")
_FEW = [8, 64 * KIB, MIB, 64 * MIB]

SUITES = [
    Suite(
        "clean",
        "2 ranks, inputs not rewritten between calls",
        2,
        False,
        "native",
        _cases(SIZES) + _cases([8, 64 * KIB, MIB, 64 * MIB], mode="in") + _HALF,
    ),
    Suite(
        "rewritten",
        "2 ranks, inputs written anew before each call",
        2,
        True,
        "native",
        _cases([16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB])
        + _cases([64 * KIB, MIB, 64 * MIB], mode="in")
        + _HALF,
    ),
    Suite("ranks4", "4 ranks, inputs not rewritten", 4, False, "native", _cases(_FEW)),
    Suite("ranks8", "8 ranks, inputs not rewritten", 8, False, "native", _cases(_FEW)),
    Suite(
        "python",
        "2 ranks, called from Python",
        2,
        False,
        "python",
        _cases([8, KIB, 64 * KIB, MIB, 64 * MIB]) + _cases([8, KIB, 64 * KIB, MIB, 64 * MIB], mode="in"),
    ),
]


def quick(suite):
    """The few cases that show where one stands; None if the suite is left out."""
    if suite.name not in ("clean", "rewritten", "python"):
        return None
    cases = [case for case in suite.cases if case.bytes in _FEW and case.dtype == "f32"]
    return suite._replace(cases=cases)


def size_text(size):
    """8 B, 64 KiB, 1 MiB."""
    if size >= MIB:
        return f"{size // MIB} MiB"
    return f"{size // KIB} KiB" if size >= KIB else f"{size} B"

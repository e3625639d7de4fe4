"""How Foldcast's times stand to the best other's, against the goals: `python benches/peers/ratios.py [RESULTS]`.

RESULTS is a directory under build/peers/results; the newest by default. A ratio below 1 means that Foldcast is faster.
"""

import sys
from pathlib import Path

import peers
from figures import Figures
from suites import MIB, SIZES, size_text

KIB = 1 << 10
_P4 = {8: 0.6, 64 * KIB: 0.55, MIB: 0.7, 64 * MIB: 0.5}
_P8 = {8: 0.45, 64 * KIB: 0.45, MIB: 0.6, 64 * MIB: 0.42}
_HALF = {MIB: 0.85, 64 * MIB: 0.5}

# (title, suite, dtype, mode, size -> at most)
GOALS = [
    (
        "float32 sum, inputs not rewritten",
        "clean",
        "f32",
        "out",
        dict(zip(SIZES, [0.6, 0.65, 0.75, 0.85, 1.0, 0.88, 0.85, 0.85, 0.68, 0.6])),
    ),
    (
        "float32 sum, inputs written anew",
        "rewritten",
        "f32",
        "out",
        dict(zip(SIZES[2:9], [0.8, 0.75, 0.85, 0.85, 0.88, 0.9, 0.6])),
    ),
    ("float32 sum in place", "clean", "f32", "in", {64 * KIB: 0.7, MIB: 0.7, 64 * MIB: 0.45}),
    ("float16 sum", "clean", "f16", "out", _HALF),
    ("bfloat16 sum", "clean", "bf16", "out", _HALF),
    ("4 ranks, float32 sum", "ranks4", "f32", "out", _P4),
    ("8 ranks, float32 sum", "ranks8", "f32", "out", _P8),
]


def rows(figures):
    """Title, size, Foldcast's us, the best other and its us, ratio, goal; what was not measured is None."""
    for title, suite, dtype, mode, goals in GOALS:
        for size, goal in goals.items():
            key = (suite, size, dtype, mode)
            others = [(figures.time(key, name), name) for name in figures.others(key)]
            best = min(others) if others else (None, None)
            yield title, size, figures.time(key, "foldcast"), best[1], best[0], figures.ratio(key), goal


def extra(figures):
    """Ratios that are not against the best of many: text, ratio, goal, whether it is to be at least that."""
    key = ("clean", 64 * MIB, "f32", "out")
    limit, us = figures.limit(64 * MIB), figures.time(key, "foldcast")
    yield "64 MiB, Foldcast by the copy limit", us / limit if us and limit else None, 1.45, False
    for size, goal in ((8, 100), (64 * MIB, 5)):
        ratio = figures.ratio(("python", size, "f32", "in"), "foldcast-numpy", ["torch"])
        yield (
            f"{size_text(size)} in place, PyTorch (Gloo) by Foldcast from numpy",
            1 / ratio if ratio else None,
            goal,
            True,
        )


def text(figures):
    lines = [f"{figures.rounds} rounds, {figures.about['date']}, {figures.about['machine']}", ""]
    title = None
    for row_title, size, us, best, best_us, ratio, goal in rows(figures):
        if row_title != title:
            title = row_title
            lines.append(f"{title}\n  {'size':>8} {'Foldcast':>10} {'best other':>10} {'':16} {'ratio':>6} {'goal':>6}")
        if ratio is None:
            lines.append(f"  {size_text(size):>8} {'not measured':>10}")
            continue
        verdict = "ok" if ratio <= goal else "OVER"
        times = f"{us:10.2f} {best_us:10.2f} {best:16}"
        lines.append(f"  {size_text(size):>8} {times} {ratio:6.2f} {goal:6.2f} {verdict}")
    lines.append("")
    for what, ratio, goal, at_least in extra(figures):
        if ratio is None:
            lines.append(f"{what}: not measured")
        else:
            kept = ratio >= goal if at_least else ratio <= goal
            bound = "at least" if at_least else "at most"
            lines.append(f"{what}: {ratio:.2f} ({bound} {goal}) {'ok' if kept else 'MISSED'}")
    return "\n".join(lines)


def main():
    if len(sys.argv) > 1:
        results = Path(sys.argv[1])
    else:
        results = max((peers.HOME / "results").iterdir(), default=None)
        if results is None:
            sys.exit("no results yet: make bench-peers")
    print(text(Figures(results)))


if __name__ == "__main__":
    main()

"""Draws a comparison; runs in the environment build/peers/tools, which has matplotlib."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import peers
from figures import Figures
from suites import SUITES, size_text

# Okabe and Ito's colours, which people who see few colours can tell apart too.
COLORS = {
    "foldcast": "#0072b2",
    "openmpi": "#d55e00",
    "mpich": "#009e73",
    "intelmpi": "#cc79a7",
    "oneccl": "#e69f00",
    "limit": "#555555",
}
SHOWN = [name for name in COLORS if name != "limit"]


def curve(figures, suite, name):
    """Sizes and times of float32 out of place; of the tuned entries of a library the best counts."""
    family = [peer.name for peer in peers.PEERS if peer.name == name or peer.name.startswith(name + "-")]
    points = []
    for case in suite.cases:
        if (case.dtype, case.mode) != ("f32", "out"):
            continue
        times = [figures.time((suite.name, case.bytes, "f32", "out"), peer) for peer in family]
        times = [us for us in times if us is not None]
        if times:
            points.append((case.bytes, min(times)))
    return points


def draw_times(axes, figures, suite):
    for name in SHOWN:
        points = curve(figures, suite, name)
        if points:
            width = 2.4 if name == "foldcast" else 1.4
            axes.plot(*zip(*points), marker="o", ms=4, lw=width, color=COLORS[name], label=peers.by_name(name).title)
    sizes = {case.bytes for case in suite.cases}
    limit = [(size, figures.limit(size)) for size in sorted(sizes & set(figures.limits))]
    if limit:
        axes.plot(*zip(*limit), ls="--", lw=1.4, color=COLORS["limit"], label="copy limit")
    axes.set_yscale("log")
    axes.set_ylabel("time (us), lower is better")
    axes.set_title(suite.title, fontsize=11)
    axes.legend(fontsize=9, frameon=False)


def draw_ratios(axes, figures, suite):
    own = curve(figures, suite, "foldcast")
    points = [(size, figures.ratio((suite.name, size, "f32", "out"))) for size, _ in own]
    points = [point for point in points if point[1] is not None]
    axes.axhline(1, color="#999999", lw=1)
    if points:
        axes.plot(*zip(*points), marker="o", ms=4, lw=2.4, color=COLORS["foldcast"])
        for size, ratio in points:
            axes.annotate(f"{ratio:.2f}", (size, ratio), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    axes.set_ylim(0, max([1.2, *(ratio for _, ratio in points)]) * 1.1)
    axes.set_ylabel("Foldcast / best other")
    axes.set_xlabel("size")


def main():
    results = Path(sys.argv[1])
    figures = Figures(results)
    chosen = [suite for suite in SUITES if suite.name in ("clean", "rewritten") and curve(figures, suite, "foldcast")]
    if not chosen:
        sys.exit("no figures of two ranks to draw")
    plt.rcParams.update({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": "foldcast"})
    figure, rows = plt.subplots(
        2, len(chosen), figsize=(6.4 * len(chosen), 7.6), squeeze=False, sharex="col", height_ratios=[2.6, 1]
    )
    for column, suite in enumerate(chosen):
        draw_times(rows[0][column], figures, suite)
        draw_ratios(rows[1][column], figures, suite)
        sizes = [size for size, _ in curve(figures, suite, "foldcast")]
        for axes in (rows[0][column], rows[1][column]):
            axes.set_xscale("log", base=2)
            axes.grid(color="#e4e4e4", lw=0.7)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.minorticks_off()
            axes.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45, fontsize=8)
    about = figures.about
    figure.suptitle(f"float32 sum; {about['machine']}; {about['date']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(results / "peers.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()

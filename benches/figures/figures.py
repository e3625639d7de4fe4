"""Measures what is asked of Foldcast in figures, on two ranks: see BENCHMARKING.md. Judges nothing."""

import argparse
import contextlib
import json
import sys
import time
from dataclasses import asdict

import groups
import session
import small
import variants
import waiting
from measured import ROOT, Failed

sys.path.append(str(ROOT / "benches/peers"))
import machine

FIGURES = {
    "async": small.of_async,
    "out": small.of_out,
    "tensorflow": session.of_tensorflow,
    "late": waiting.of_late,
    "idle": waiting.of_idle,
    "hog": waiting.of_hog,
    "mismatch": small.of_mismatch,
    "blackbox": small.of_blackbox,
    "fused": session.of_fused,
    "beside": groups.of_beside,
    "groups": groups.of_groups,
}
# Those for which the engine is built without a part.
BUILT = {"mismatch", "blackbox"}


def arguments():
    about = "\n".join(f"  {name:<12}{measure.__doc__}" for name, measure in FIGURES.items())
    parser = argparse.ArgumentParser(
        prog="ci/figures.sh",
        description=__doc__,
        epilog=f"figures:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="only these (all)")
    parser.add_argument("--json", metavar="FILE", help="write them to this file too")
    given = parser.parse_args()
    unknown = [name for name in given.figures if name not in FIGURES]
    if unknown:
        parser.error(f"no figure {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    return given


def number(value):
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def line(figure, row):
    spread = f"{number(row.spread[0])} .. {number(row.spread[1])}"
    asked = "" if row.asked is None else f"{number(row.asked)}"
    return f"{figure:<11} {row.what:<52} {row.unit:<12} {asked:>6} {number(row.measured):>9}   {spread} ({row.rounds})"


def main():
    given = arguments()
    print(f"{time.strftime('%Y-%m-%d')}; {machine.describe()}")
    head = ("figure", "what", "unit", "asked", "measured", "quartiles (of how many)")
    print("{:<11} {:<52} {:<12} {:>6} {:>9}   {}".format(*head))
    found, failed = [], []
    names = given.figures or list(FIGURES)
    if not BUILT.isdisjoint(names):
        # Before anything is measured. What fails is said where the figure would stand.
        with contextlib.suppress(Failed):
            variants.build()
    for figure in names:
        begun = time.monotonic()
        busy, own = machine.busy(), machine.own()
        try:
            rows = list(FIGURES[figure]())
        except Failed as failure:
            print(f"{figure:<11} NOT MEASURED: {failure}", flush=True)
            failed.append(figure)
            continue
        seconds = time.monotonic() - begun
        others = max(0.0, machine.busy() - busy - (machine.own() - own)) / seconds / machine.CORES
        for row in rows:
            print(line(figure, row), flush=True)
        if seconds >= 1:  # else another figure has measured it already
            print(f"{'':<11} ({seconds:.0f} s; other programs used {others:.0%} of the cores)", flush=True)
        found += [{"figure": figure, **asdict(row), "others": round(others, 3)} for row in rows]
    if given.json:
        about = {"date": time.strftime("%Y-%m-%d"), "machine": machine.describe(), "figures": found, "failed": failed}
        with open(given.json, "w") as file:
            json.dump(about, file, indent=1)
            file.write("\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

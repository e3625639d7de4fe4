"""The table and the plot of a comparison, and their place in BENCHMARKING.md."""

import subprocess

import peers
import ratios
from figures import Figures
from states import MOST_BYTES, summary
from suites import SUITES, size_text

BEGIN, END = "<!-- figures of benches/peers, written by make bench-peers -->", "<!-- end of the figures -->"
PICTURE = "docs/peers.svg"
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i32": "int32"}


def number(us):
    if us is None:
        return ""
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"


def table(figures, suite):
    """A suite as a table: us, the best in bold."""
    measured = [case for case in suite.cases if (suite.name, case.bytes, case.dtype, case.mode) in figures.times]
    keys = [(suite.name, case.bytes, case.dtype, case.mode) for case in measured]
    names = [peer.name for peer in peers.PEERS if any(peer.name in figures.times[key] for key in keys)]
    if not names:
        return []
    native = suite.kind == "native"
    heads = ["", *(peers.by_name(name).title for name in names), *(["ratio"] if native else [])]
    lines = [f"### {suite.title[0].upper()}{suite.title[1:]}", ""]
    lines += ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for key in keys:
        _, size, dtype, mode = key
        times = [figures.time(key, name) for name in names]
        best = min(us for us in times if us is not None)
        cells = [f"**{number(us)}**" if us == best else number(us) for us in times]
        if native:
            ratio = figures.ratio(key)
            cells.append("" if ratio is None else f"{ratio:.2f}")
        what = f"{size_text(size)} {DTYPES[dtype]}" + (" in place" if mode == "in" else "")
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def distance(figures):
    """How far the cores were from each other, where it is known."""
    states = summary(figures.own_trips())
    if not states:
        return []
    unlike, count = figures.unlike()
    return [
        f"In {unlike} of {count} measurements up to {size_text(MOST_BYTES)} the cores were not as far apart as in Foldcast's run of the same",
        f"turn. Beside Foldcast's, a cache line's round trip between the cores took {states}.",
    ]


def text(figures):
    about = figures.about
    loud = sum(share > 0.06 for share in figures.foreign)
    lines = [
        f"{about['date']}; {about['machine']}; {figures.rounds} rounds, {about['case_ms']} ms a time of a round. Times in us, the",
        "median over the rounds, best in bold. ratio is Foldcast's time by the best other's of the same round, the median over",
        f"the rounds. In {loud} of {len(figures.foreign)} measurements other programs used more than 6 % of the cores.",
        *distance(figures),
        "",
    ]
    for suite in SUITES:
        lines += table(figures, suite)
    limit = [(size, figures.limit(size)) for size in sorted(figures.limits)]
    if limit:
        lines.append(
            "Copy limit of two ranks: " + ", ".join(f"{size_text(s)} {number(us)} us" for s, us in limit) + "."
        )
        lines.append("")
    return "\n".join(lines)


def write(results, quick):
    """Writes the report beside the results; if it is a full one, into the documentation too."""
    figures = Figures(results)
    content = text(figures)
    (results / "tables.md").write_text(content)
    print(content)
    print(ratios.text(figures))
    picture = results / "peers.svg"
    python = peers.HOME / "tools/bin/python"
    drawn = python.exists() and not subprocess.run([str(python), str(peers.HERE / "chart.py"), str(results)]).returncode
    if not drawn:
        print("peers: *** the plot could not be drawn")
    if not quick:
        document = peers.ROOT / "BENCHMARKING.md"
        before, _, rest = document.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        shown = (
            f"![Foldcast beside other libraries: time against size, as a ratio and in us]({PICTURE})\n\n"
            if drawn
            else ""
        )
        document.write_text(f"{before}{BEGIN}\n\n{shown}{content}{END}{after}")
        if drawn:
            (peers.ROOT / PICTURE).write_bytes(picture.read_bytes())
        print(f"peers: BENCHMARKING.md and {PICTURE} are written anew")
    print(f"peers: everything is in {results.relative_to(peers.ROOT)}")

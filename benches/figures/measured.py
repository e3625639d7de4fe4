"""What the figures have in common: a row of the table, statistics, and starting ranks."""

import json
import os
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PYTHON = ROOT / ".venv/bin/python"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
RUN_LIMIT_S = 120


class Failed(Exception):
    """A figure could not be measured; the text says why."""


@dataclass(frozen=True)
class Row:
    """One figure: the median, and the quartiles, over `rounds` measurements of it."""

    what: str
    unit: str
    measured: float
    spread: Tuple[float, float]
    rounds: int
    # The most it may be, if anything is asked.
    asked: Optional[float] = None


def row(what, unit, values: Sequence[float], asked=None):
    """A row of the values of the rounds."""
    values = sorted(values)
    if not values:
        raise Failed(f"{what}: nothing was measured")
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    else:
        low = high = values[0]
    return Row(what, unit, statistics.median(values), (low, high), len(values), asked)


def differences(ones, others):
    """One minus the other, round by round."""
    return [one - other for one, other in zip(ones, others)]


def in_turn(rounds, contestants):
    """Runs the contestants (functions by name) round by round, each once a round, the order turning; what they gave, by name."""
    found = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(rounds):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            found[name].append(contestants[name]())
    return found


def output(command, **environment):
    """Standard output of a command that must end well."""
    command = [str(part) for part in command]
    try:
        run = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)}: not done after {RUN_LIMIT_S} s") from None
    if run.returncode:
        raise Failed(f"{' '.join(command)}: exit code {run.returncode}\n{run.stderr[-2000:]}")
    return run.stdout


def ranks(*program, number=2):
    """Runs the program as the ranks of a job; the JSON that rank 0 prints as its last line that is JSON."""
    text = output([TARGET / "foldcast", "run", "-n", number, "--", *program])
    for line in reversed(text.splitlines()):
        # The launcher puts the rank in front.
        line = line.removeprefix("[0] ")
        if line.startswith("{"):
            return json.loads(line)
    raise Failed(f"{' '.join(map(str, program))}: no figures in\n{text[-2000:]}")


def rust(what, program=None):
    """The Rust program of the figures (crates/foldcast/examples/figures.rs) on two ranks."""
    return ranks(program or TARGET / "examples/figures", what)


def python(script, *arguments):
    """A Python program beside this file, on two ranks."""
    return ranks(PYTHON, HERE / script, *arguments)

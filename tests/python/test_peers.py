"""What benches/peers makes of raw figures."""

import json
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[2] / "benches/peers"


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(PEERS))
    names = ["figures", "peers", "ratios", "report", "suites"]
    yield {name: __import__(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def results(path, rows):
    """A directory of results: rows are (round, suite, peer, bytes, mode, us)."""
    about = {"machine": "a machine", "date": "2026-01-01", "quick": False, "case_ms": 150}
    (path / "about.json").write_text(json.dumps(about))
    with open(path / "raw.jsonl", "w") as file:
        for number, suite, peer, size, mode, us in rows:
            row = {"round": number, "suite": suite, "peer": peer, "bytes": size, "dtype": "f32", "op": "sum"}
            file.write(json.dumps(dict(row, mode=mode, us=us, foreign=0.0)) + "\n")
    return path


# Other programs made everything slower in the second round, and mpich was faster in the third.
ROUNDS = [
    (0, {"foldcast": 1.0, "openmpi": 2.0, "mpich": 4.0}),
    (1, {"foldcast": 30.0, "openmpi": 50.0, "mpich": 100.0}),
    (2, {"foldcast": 1.0, "openmpi": 3.0, "mpich": 1.25}),
]


def test_a_ratio_is_of_one_round_against_the_best_of_that_round(modules, tmp_path):
    rows = [(n, "clean", peer, 8, "out", us) for n, times in ROUNDS for peer, us in times.items()]
    figures = modules["figures"].Figures(results(tmp_path, rows))
    key = ("clean", 8, "f32", "out")
    assert figures.rounds == 3
    assert figures.ratio(key) == 0.6  # of 0.5, 0.6 and 0.8
    assert figures.ratio(key, others=["openmpi"]) == 0.5  # of 0.5, 0.6 and a third
    assert figures.time(key, "openmpi") == 3.0
    assert figures.time(key, "intelmpi") is None
    assert figures.ratio(("clean", 64, "f32", "out")) is None


def test_a_round_in_which_nobody_else_ran_has_no_ratio(modules, tmp_path):
    rows = [(0, "clean", "foldcast", 8, "out", 1.0), (1, "clean", "foldcast", 8, "out", 1.0)]
    rows.append((1, "clean", "mpich", 8, "out", 4.0))
    figures = modules["figures"].Figures(results(tmp_path, rows))
    assert figures.ratio(("clean", 8, "f32", "out")) == 0.25


def test_goals_are_compared_and_what_is_missing_is_said(modules, tmp_path):
    rows = [(0, "clean", "foldcast", 8, "out", 1.0), (0, "clean", "mpich", 8, "out", 2.0)]
    rows += [(0, "clean", "foldcast", 1024, "out", 1.0), (0, "clean", "mpich", 1024, "out", 1.0)]
    rows += [(0, "python", "foldcast-numpy", 8, "in", 1.0), (0, "python", "torch", 8, "in", 200.0)]
    rows += [(0, "limit", "limit", 64 << 20, None, 7000.0), (0, "clean", "foldcast", 64 << 20, "out", 9000.0)]
    text = modules["ratios"].text(modules["figures"].Figures(results(tmp_path, rows)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "8 B 1.00 2.00 mpich 0.50 0.60 ok" in lines
    assert "1 KiB 1.00 1.00 mpich 1.00 0.65 OVER" in lines
    assert "16 KiB not measured" in lines
    assert "64 MiB, Foldcast by the copy limit: 1.29 (at most 1.45) ok" in lines
    assert "8 B in place, PyTorch (Gloo) by Foldcast from numpy: 200.00 (at least 100) ok" in lines


def test_the_table_has_the_best_in_bold_and_the_ratio(modules, tmp_path):
    rows = [(0, "clean", "foldcast", 8, "out", 0.125), (0, "clean", "intelmpi", 8, "out", 0.5)]
    rows += [(0, "clean", "foldcast", 64 << 20, "in", 9000.0), (0, "clean", "intelmpi", 64 << 20, "in", 8000.0)]
    text = modules["report"].text(modules["figures"].Figures(results(tmp_path, rows)))
    assert "| | Foldcast | Intel MPI | ratio |" in text.replace("|  |", "| |")
    assert "| 8 B float32 | **0.12** | 0.50 | 0.25 |" in text
    assert "| 64 MiB float32 in place | 9000 | **8000** | 1.12 |" in text


def test_every_contestant_has_something_to_do(modules):
    for peer in modules["peers"].PEERS:
        assert any(modules["peers"].cases_of(peer, suite) for suite in modules["suites"].SUITES), peer.name

"""What benches/peers makes of raw figures."""

import json
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[2] / "benches/peers"


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(PEERS))
    names = ["figures", "machine", "peers", "ratios", "report", "states", "suites"]
    yield {name: __import__(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def results(path, rows):
    """A directory of results: rows are (round, suite, peer, bytes, mode, us), or with the round trips before and after."""
    about = {"machine": "a machine", "date": "2026-01-01", "quick": False, "case_ms": 150}
    (path / "about.json").write_text(json.dumps(about))
    with open(path / "raw.jsonl", "w") as file:
        for number, suite, peer, size, mode, us, *trips in rows:
            row = {"round": number, "suite": suite, "peer": peer, "bytes": size, "dtype": "f32", "op": "sum"}
            if trips:
                row["line_round_trip_ns"] = trips
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


NEAR, FAR = 55.0, 320.0


def test_the_heading_says_how_many_times_are_of_another_state_than_foldcasts(modules, tmp_path):
    def text(rows):
        return modules["report"].text(modules["figures"].Figures(results(tmp_path, rows)))

    own = [(0, "clean", "foldcast", 8, "out", 1.0, NEAR, NEAR + 9), (1, "clean", "foldcast", 8, "out", 1.0, FAR, FAR)]
    others = [(0, "clean", "mpich", 8, "out", 2.0, NEAR, NEAR), (1, "clean", "mpich", 8, "out", 2.0, FAR, FAR)]
    content = text(own + others)
    assert "In 0 of 2 measurements up to 4 MiB the cores were not as far apart" in content
    assert "took 60 ns (50%) or 320 ns (50%)" in content
    others += [(0, "clean", "openmpi", 8, "out", 2.0, FAR, FAR), (1, "clean", "openmpi", 8, "out", 2.0, FAR, NEAR)]
    # Large ones are not counted, nor are rounds in which Foldcast was not measured.
    others += [(0, "clean", "openmpi", 64 << 20, "out", 2.0, FAR, FAR), (2, "clean", "mpich", 8, "out", 2.0, FAR, FAR)]
    own += [(0, "clean", "foldcast", 64 << 20, "out", 1.0, NEAR, NEAR)]
    assert "In 2 of 4 measurements" in text(own + others)
    # Neither are results without round trips, such as those of one core.
    assert "measurements up to" not in text(
        [(0, "clean", "foldcast", 8, "out", 1.0), (0, "clean", "mpich", 8, "out", 2.0)]
    )
    unknown = [(0, "clean", peer, 8, "out", 1.0, None, None) for peer in ("foldcast", "mpich")]
    assert "measurements up to" not in text(unknown)


@pytest.mark.parametrize(
    "times, expected",
    [([], True), ([None, 55.0], True), ([55.0, 85.0], True), ([55.0, 90.0], False), ([320.0, 300.0, 55.0], False)],
)
def test_round_trips_of_one_state(modules, times, expected):
    assert modules["states"].alike(times) == expected
    assert modules["states"].alike(times[::-1]) == expected


def test_each_state_has_its_median_and_share(modules):
    summary = modules["states"].summary
    assert summary([]) == summary([None]) == ""
    assert summary([310.0, None, 290.0, 300.0]) == "300 ns"
    assert summary([64.0, 310.0, 28.0, 66.0, 30.0, 65.0, 300.0, 67.0]) == "29 ns (25%) or 66 ns (50%) or 305 ns (25%)"


def members(modules, *names):
    return [modules["peers"].by_name(name) for name in names]


def test_parts_have_every_case_of_every_contestant_as_often_as_there_are_turns(modules):
    states, peers, suites = modules["states"], modules["peers"], modules["suites"]
    for suite in suites.SUITES:
        found = {peer.name: [] for peer in peers.PEERS}
        found_turns = {case: [] for case in suite.cases}
        for part in states.parts(suite, peers.PEERS):
            for case in part.suite.cases:
                found_turns[case].append(part.turn)
            if part.turn:
                continue
            assert part.todo and part.suite.name == suite.name
            small = [case.bytes <= states.MOST_BYTES for case in part.suite.cases]
            assert part.any_state or (all(small) and len(small) <= states.MOST_CASES)
            assert not part.any_state or suite.kind == "python" or not any(small)
            for peer in part.todo:
                found[peer.name] += peers.cases_of(peer, part.suite)
        for peer in peers.PEERS:
            assert sorted(found[peer.name]) == sorted(peers.cases_of(peer, suite)), (suite.name, peer.name)
        for case, turns in found_turns.items():
            once = suite.kind == "python" or case.bytes > states.MOST_BYTES
            assert turns == ([0] if once else [0, 1, 2]), case


def test_a_time_of_a_round_is_the_median_over_its_turns(modules, tmp_path):
    # mpich met one good moment, which says nothing of it.
    rows = [(0, "clean", "foldcast", 8, "out", us) for us in (1.0, 1.0, 3.0)]
    rows += [(0, "clean", "mpich", 8, "out", us) for us in (0.5, 2.0, 2.0)]
    figures = modules["figures"].Figures(results(tmp_path, rows))
    assert figures.ratio(("clean", 8, "f32", "out")) == 0.5
    assert figures.time(("clean", 8, "f32", "out"), "mpich") == 2.0


class World:
    """Stands for the machine: the state of the cores at each second, and runs of a second."""

    def __init__(self, modules, monkeypatch, state_at):
        self.now, self.state_at, self.states, self.runs = 0.0, state_at, modules["states"], []
        monkeypatch.setattr(self.states, "round_trip", lambda: state_at(self.now))
        monkeypatch.setattr(self.states.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(modules["machine"], "wait_until_quiet", lambda: self.sleep(0.25))

    def sleep(self, seconds):
        self.now += seconds

    def run_all(self, parts, seconds=1.0):
        def run(peer, suite):
            self.sleep(seconds)
            return "figures", seconds

        self.runs = list(self.states.run_all(parts, run))
        return [done for done in self.runs if done.last]


def small_parts(modules, count, *names):
    suite = modules["suites"].SUITES[0]
    take = members(modules, *names)
    return [modules["states"].Part(suite._replace(cases=suite.cases[at : at + 1]), take, False) for at in range(count)]


NAMES = ("foldcast", "openmpi", "mpich", "intelmpi")


def test_cores_that_stay_where_they_are_cost_nothing(modules, monkeypatch):
    for state in (NEAR, None):
        world = World(modules, monkeypatch, lambda now, state=state: state)
        last = world.run_all(small_parts(modules, 2, *NAMES))
        assert [done.peer.name for done in last] == [*NAMES, *NAMES]
        assert len(world.runs) == len(last) and world.now == 8 * 1.25


def test_a_part_is_measured_in_one_state_whatever_the_cores_do(modules, monkeypatch):
    world = World(modules, monkeypatch, lambda now: NEAR if int(now / 5.3) % 2 == 0 else FAR)
    last = world.run_all(small_parts(modules, 6, *NAMES))
    assert len(last) == 24
    for case in {done.suite.cases[0] for done in last}:
        of_part = [done for done in last if done.suite.cases[0] == case]
        assert {done.peer.name for done in of_part} == set(NAMES)
        assert modules["states"].alike([ns for done in of_part for ns in done.trips]), of_part
    # Runs in which the cores were moved were repeated, and nothing else was.
    assert {done.last for done in world.runs if modules["states"].alike(done.trips)} == {True}
    assert any(not done.last for done in world.runs)


def test_tries_and_patience_are_bounded_and_the_last_run_counts(modules, monkeypatch):
    states = modules["states"]
    # Moved within every run: no run is of one state.
    world = World(modules, monkeypatch, lambda now: NEAR if int(now / 0.7) % 2 == 0 else FAR)
    last = world.run_all(small_parts(modules, 1, "foldcast", "mpich"), seconds=0.7)
    assert len(last) == 2 and all(done.tries <= states.TRIES for done in last)
    assert any(done.tries == states.TRIES for done in last)

    # Near for the first contestant only: the others wait as long as there is patience, and run all the same.
    world = World(modules, monkeypatch, lambda now: NEAR if now < 1.5 else FAR)
    last = world.run_all(small_parts(modules, 1, *NAMES))
    assert [(done.peer.name, done.trips) for done in last[1:]] == [(name, [FAR, FAR]) for name in NAMES[1:]]
    assert states.PATIENCE_S <= world.now < states.PATIENCE_S + 10


def test_runs_that_take_long_are_not_repeated(modules, monkeypatch):
    world = World(modules, monkeypatch, lambda now: NEAR if int(now / 3) % 2 == 0 else FAR)
    last = world.run_all(small_parts(modules, 1, "foldcast"), seconds=9.0)
    assert [done.tries for done in last] == [1] and not modules["states"].alike(last[0].trips)


def test_large_cases_fill_the_time_in_which_small_ones_would_wait(modules, monkeypatch):
    small, large = small_parts(modules, 2, "foldcast", "mpich")
    large.any_state = True
    world = World(modules, monkeypatch, lambda now: NEAR if now < 1.5 or now >= 3.5 else FAR)
    last = world.run_all([small, large])
    order = [(done.suite.cases[0].bytes, done.peer.name) for done in last]
    assert order == [(8, "foldcast"), (1024, "foldcast"), (1024, "mpich"), (8, "mpich")]

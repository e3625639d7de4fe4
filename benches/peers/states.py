"""How far the cores are from each other, and who runs when, so that what is compared was measured in one state.

A virtual machine's cores are near (they share a cache, or are even two threads of one core) or far from each other by turns of
some seconds, and a call of 8 bytes takes more than twice as long where they are far. So suites are cut into parts that take
a second. All contestants of a part are to run in the state in which its first one has run: at any time, that part goes on
whose state it is.

Other changes nobody sees: there are seconds in which everything takes longer, or less, than usual. A round's best other is the best
of many, so one of them that met a good second would stand for all. So each of these parts has three turns in a round, each of a third
of the time, with others between them where there are any; a contestant's time in the round is the median.
"""

import os
import subprocess
import time
from collections import namedtuple
from statistics import median

import machine
import peers
from suites import MIB

# Round trips that differ by more than this factor are of different states; those of one differ by a fifth.
FACTOR = 1.6
# Where all is in memory, or a call takes 100 us, the state matters less; and such runs are too long for one state.
MOST_BYTES = 4 * MIB
MOST_CASES = 5
# How often in a round each contestant of such a part runs.
TURNS = 3
# A run is made so often at most, and not again if it takes so long that the next one would hardly do better.
TRIES = 4
LONG_S = 5.0
# The time that a round may spend with repeated runs, and with waiting for a state.
PATIENCE_S = 60.0

# The exit code of a command that is refused.
REFUSED = 2

# One run of a contestant. trips: the round trip before it and after it. last: it is the one that counts of its turn.
Run = namedtuple("Run", "suite turn peer result trips tries last")


def round_trip():
    """ns that a cache line takes between the first two cores and back; None where it cannot be measured, as on one core."""
    if len(os.sched_getaffinity(0)) < 2:
        return None
    command = [str(peers.VENV / "foldcast"), "bench", "round-trip"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=30)
    if done.returncode == REFUSED:
        return None
    done.check_returncode()
    return float(done.stdout)


def alike(times):
    """Whether these round trips are of one state; what is not known is of any."""
    known = [ns for ns in times if ns is not None]
    return not known or max(known) <= FACTOR * min(known)


class Part:
    """Cases of a suite that each contestant runs in one process, and who has yet to."""

    def __init__(self, suite, todo, any_state, turn=0):
        self.suite, self.todo, self.any_state, self.turn = suite, list(todo), any_state, turn
        # The round trips of the first run that was in one state: that of the whole part.
        self.state = []
        self.tries = {peer.name: 0 for peer in todo}

    def fits(self, ns):
        return not self.any_state and bool(self.state) and alike([*self.state, ns])

    def done(self, peer, seconds, trips, patient):
        """Notes a run between two round trips; whether it is to be repeated, for which the peer goes to the end."""
        self.todo.remove(peer)
        self.tries[peer.name] += 1
        right = alike([*self.state, *trips])
        if right and not self.state:
            self.state = [ns for ns in trips if ns is not None]
        repeat = not right and not self.any_state and patient and seconds < LONG_S and self.tries[peer.name] < TRIES
        if repeat:
            self.todo.append(peer)
        return repeat


def turns(suite):
    """How often each contestant of these cases runs in a round."""
    return TURNS if suite.kind == "native" and all(case.bytes <= MOST_BYTES for case in suite.cases) else 1


def parts(suite, members):
    """A suite in parts: small cases a few at a time, large ones together; from Python, where starting takes long, all."""
    if suite.kind == "python":
        groups = [list(suite.cases)]
    else:
        small = [case for case in suite.cases if case.bytes <= MOST_BYTES]
        count = -(-len(small) // MOST_CASES)
        groups = [small[at * len(small) // count : (at + 1) * len(small) // count] for at in range(count)]
        groups.append([case for case in suite.cases if case.bytes > MOST_BYTES])
    for cases in groups:
        part = suite._replace(cases=cases)
        todo = [peer for peer in members if peers.cases_of(peer, part)]
        for turn in range(turns(part) if todo else 0):
            yield Part(part, todo, turns(part) == 1, turn)


def choose(open_parts, ns):
    """The part to go on with where a round trip takes so long; None: only such are left whose state is another."""
    lowest = min((part.turn for part in open_parts if not part.any_state), default=0)
    for wanted in (
        lambda part: part.fits(ns),
        lambda part: not part.any_state and not part.state and part.turn == lowest,
        lambda part: part.any_state,
        lambda part: not part.any_state and not part.state,
    ):
        for part in open_parts:
            if wanted(part):
                return part
    return None


def run_all(all_parts, run):
    """Each part with each of its contestants: gives every run. `run(peer, suite)` makes one: (result, seconds)."""
    patience_s = PATIENCE_S
    while any(part.todo for part in all_parts):
        open_parts = [part for part in all_parts if part.todo]
        start = time.monotonic()
        machine.wait_until_quiet()
        before = round_trip()
        part = choose(open_parts, before)
        if part is None and patience_s > 0:
            patience_s -= time.monotonic() - start
            continue
        part = part or open_parts[0]
        peer = part.todo[0]
        result, seconds = run(peer, part.suite)
        trips = [before, round_trip()]
        repeat = part.done(peer, seconds, trips, patience_s > 0)
        if repeat:
            patience_s -= time.monotonic() - start
        yield Run(part.suite, part.turn, peer, result, trips, part.tries[peer.name], not repeat)


def summary(trips):
    """Round trips in words: the median of each state, and its share where there are several."""
    found = []
    for ns in sorted(ns for ns in trips if ns is not None):
        if found and alike([found[-1][0], ns]):
            found[-1].append(ns)
        else:
            found.append([ns])
    count = sum(map(len, found))
    texts = [f"{median(each):.0f} ns" + (f" ({len(each) / count:.0%})" if len(found) > 1 else "") for each in found]
    return " or ".join(texts)

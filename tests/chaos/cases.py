"""What dies, how and when; and what the survivors must say of it."""

import json
import random
import typing

# How a rank ends: what the others must say after "rank N ".
ENDINGS = {
    "kill": "was killed by signal 9 (SIGKILL)",
    "segv": "was killed by signal 11 (SIGSEGV)",
    "abort": "was killed by signal 6 (SIGABRT)",
    "exit": "exited with status 7",
    "unborn": "exited with status 7",
    # An exception that nobody catches ends the process in order.
    "exception": "left in order after call",
    "panic": "left in order after call",
}
CODES = {"kill": 137, "segv": 139, "abort": 134, "exit": 7, "unborn": 7, "panic": 101}
LARGEST = 16 << 20


class Case(typing.NamedTuple):
    """One job in which one rank dies."""

    number: int
    ranks: int
    victim: int
    how: str
    way: str
    bytes: int
    delay: float  # seconds

    @staticmethod
    def draw(seed, number, hows, ways, longest_delay):
        """The case of this number: the same for the same seed."""
        chosen = random.Random(f"{seed}-{number}")
        ranks = chosen.choice([2, 2, 3, 3, 4, 5])
        size = min(8 << chosen.randrange(22), LARGEST)
        if size < LARGEST:
            size += chosen.randrange(size) // 8 * 8
        return Case(
            number=number,
            ranks=ranks,
            victim=chosen.randrange(ranks),
            how=hows[number % len(hows)],
            way=chosen.choice(ways),
            bytes=size,
            delay=chosen.uniform(0, longest_delay),
        )


class Told(typing.NamedTuple):
    """What one survivor said."""

    rank: int
    at: int  # when it had its exception, ns of the monotonic clock
    called: int  # when the call began that failed
    kind: str
    text: str
    again: str  # the kind of the error of the next call


def wrong(case, told):
    """What is wrong with what a survivor said, or None."""
    expected = f"rank {case.victim} {ENDINGS[case.how]}"
    if told.kind not in ("RankDiedError", "GroupAbortedError"):
        return f"rank {told.rank} got {told.kind}: {told.text}"
    if expected not in told.text:
        return f"rank {told.rank} was not told that {expected}: {told.text}"
    if told.again not in ("", "GroupAbortedError"):
        return f"the next call of rank {told.rank} ended with {told.again}"
    return None


class Results:
    """The times from death to exception, by face and kind; and what went wrong."""

    def __init__(self, face):
        self.face = face
        self.times = []  # (face, how, way, ms)
        self.kills = 0
        self.failures = []

    def add(self, case, died, survivors):
        """Note the survivors' words; `died` is None if nobody saw the death."""
        self.kills += 1
        for told in survivors:
            complaint = wrong(case, told)
            if complaint:
                self.failures.append(f"{case}: {complaint}")
            if died is not None:
                # Who sleeps at the time can be told only when it calls.
                since = max(died, told.called)
                self.times.append((self.face, case.how, case.way, (told.at - since) / 1e6))
        if len(survivors) != case.ranks - 1:
            ranks = sorted(told.rank for told in survivors)
            self.failures.append(f"{case}: only ranks {ranks} said something")

    def save(self, path):
        with open(path, "a") as file:
            file.write(json.dumps({"kills": self.kills, "times": self.times, "failures": self.failures}) + "\n")


def percentile(ordered, percent):
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def table(paths):
    """The saved results as a table; returns whether all is well."""
    saved = []
    for path in paths:
        with open(path) as file:
            saved.extend(json.loads(line) for line in file)
    times = [tuple(time) for part in saved for time in part["times"]]
    failures = [failure for part in saved for failure in part["failures"]]
    print(f"{'from death to exception':28} {'told':>6} {'median ms':>10} {'99 % ms':>10} {'max ms':>10}")

    def row(name, chosen):
        if chosen:
            ordered = sorted(chosen)
            values = (percentile(ordered, 50), percentile(ordered, 99), ordered[-1])
            print(f"{name:28} {len(ordered):6}" + "".join(f" {value:10.2f}" for value in values))

    for face, how in sorted({(face, how) for face, how, _, _ in times}):
        row(f"{face} {how}", [ms for f, h, _, ms in times if (f, h) == (face, how)])
    for way in sorted({way for _, _, way, _ in times}):
        row(f"survivors: {way}", [ms for _, _, w, ms in times if w == way])
    every = [ms for *_, ms in times]
    row("all", every)
    if every:
        soon = sum(ms <= 100 for ms in every)
        print(f"within 100 ms: {soon} of {len(every)} ({100 * soon / len(every):.2f} %)")
    print(f"{sum(part['kills'] for part in saved)} kills, {len(failures)} failures")
    for failure in failures:
        print(f"FAILED: {failure}")
    return not failures

"""Figures of small calls, back to back: `async`, `out`, `mismatch`, `blackbox`."""

import re
import statistics
import tempfile
from functools import lru_cache, partial
from pathlib import Path

import measured
import variants
from measured import Failed, differences, in_turn, row

LAUNCHES = 9


def of_async():
    """What a submitted call that is waited for takes beyond a blocking one."""
    found = in_turn(3, {"Rust": partial(measured.rust, "async"), "Python": partial(measured.python, "rank_calls.py")})
    for face, launches in found.items():
        blocking, submitted = ([time for each in launches for time in each[way]] for way in ("blocking", "async"))
        yield row(f"8 B blocking, {face}", "us", blocking)
        yield row(f"8 B submitted and waited for, {face}", "us", submitted)
        yield row(f"submitted - blocking, {face}", "us", differences(submitted, blocking), asked=2)
        # What of it is the waking of the waiting thread.
        for way, text in (("in flight", "with 16 in flight"), ("chained", "by the completion before")):
            times = [time for each in launches for time in each.get(way, [])]
            if times:
                yield row(f"8 B submitted {text}, {face}", "us", times)
                yield row(f"submitted {text} - blocking, {face}", "us", differences(times, blocking))


def of_out():
    """What Python adds to the engine, for a call of 8 bytes with `out`."""
    contestants = {
        "Rust": partial(measured.rust, "blocking"),
        "Python": partial(measured.python, "rank_calls.py", "blocking", "loop"),
    }
    found = in_turn(LAUNCHES, contestants)
    engine = [statistics.median(each["blocking"]) for each in found["Rust"]]
    # The loop calls a function that calls ours.
    loop, whole = ([statistics.median(each[way]) for each in found["Python"]] for way in ("loop", "blocking"))
    python = differences(whole, loop)
    yield row("8 B, Rust", "us", engine)
    yield row("8 B with out, Python, without the loop", "us", python)
    yield row("the loop", "us", loop)
    yield row("Python - Rust", "us", differences(python, engine), asked=0.6)


def _cost_of(part, what):
    """The time with a part and without it."""
    programs = variants.build()
    whole = "as it is"
    contestants = {name: partial(measured.rust, "blocking", programs[name]) for name in (whole, part)}
    found = {
        name: [statistics.median(each["blocking"]) for each in launches]
        for name, launches in in_turn(41, contestants).items()
    }
    shares = [100 * (one / other - 1) for one, other in zip(found[whole], found[part])]
    yield row("8 B as it is", "us", found[whole])
    yield row(f"8 B {part}", "us", found[part])
    yield row(f"{what} in time", "%", shares, asked=3)


def of_mismatch():
    """What it costs to check that the ranks agree, for a call of 8 bytes."""
    yield from _cost_of("without the check", "the check")
    check, call = _instructions()
    yield row("the check", "instructions", [check])
    yield row("a call of 8 B in the plain memory of that count", "instructions", [call])
    yield row("the check in instructions", "%", [100 * check / call], asked=3)


def of_blackbox():
    """What it costs to note a call of 8 bytes for those who look from outside."""
    yield from _cost_of("without the notes", "the notes")
    notes = []
    for _ in range(LAUNCHES):
        text = measured.output([measured.TARGET / "examples/note_bench"])
        notes.append(float(re.search(r"unnamed call: ([\d.]+) ns", text).group(1)))
    yield row("the notes by themselves", "ns", notes)


# What the check does in the engine: lines that speak of the hash, of what was described, and of what differs.
_CHECK = re.compile(r"\b(hash|described|differs)\b")


def _instructions():
    """Instructions of the check, and of the whole, in each call of 8 bytes of the engine's example `instructions`."""
    program = measured.TARGET / "examples/instructions"
    with tempfile.TemporaryDirectory(prefix="foldcast-figures-") as directory:
        names = measured.output(
            [
                "valgrind",
                "--tool=callgrind",
                f"--callgrind-out-file={directory}/out",
                "--toggle-collect=*measured*",
                "--dump-after=instructions::measured",
                program,
            ]
        ).splitlines()
        for number, line in enumerate(names, 1):
            name, calls = line.split("\t")
            if name.startswith("call of 8 B"):
                return _attributed(Path(directory, f"out.{number}").read_text(), int(calls))
    raise Failed("the example instructions has no call of 8 B")


_SOURCE = re.compile(r"(fl|fi|fe|cfi|cfl)=\((\d+)\)(?: (.*))?$")
_COST = re.compile(r"(\+\d+|-\d+|\*|\d+) (\d+)$")


def _attributed(dump, calls):
    """Of a dump of callgrind, for each call: instructions of lines of the check, and all."""
    sources, check, total = {}, 0, 0
    source, skip, line = "", False, 0
    for text in dump.splitlines():
        of_source, of_cost = _SOURCE.match(text), _COST.match(text)
        if of_source:
            kind, number, path = of_source.groups()
            if path:
                sources[number] = path
            if not kind.startswith("c"):
                source = sources[number]
        elif text.startswith("calls="):
            skip = True  # the next line has what the called function took, which has lines of its own
        elif of_cost:
            place, cost = of_cost.groups()
            if place != "*":
                line = line + int(place) if place[0] in "+-" else int(place)
            if not skip:
                total += int(cost)
                check += int(cost) if _CHECK.search(_source_line(source, line)) else 0
            skip = False
    return check / calls, total / calls


@lru_cache
def _lines(path):
    place = measured.ROOT / path
    return place.read_text().splitlines() if place.is_file() else []


def _source_line(source, line):
    """A line of a source of the engine; of any other, nothing."""
    _, engine, rest = source.partition("crates/engine/")
    lines = _lines(engine + rest) if engine else []
    return lines[line - 1] if 0 < line <= len(lines) else ""

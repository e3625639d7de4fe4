"""Times Foldcast beside other libraries: `make bench-peers`. The README beside this file says how.

Each round runs every contestant in every suite, part by part, the order rotating; ratios are of one round. `states.py` says when a part
runs, and how often.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import install
import machine
import peers
import report
import states
import suites

LINE = re.compile(r"(\d+) (\w+) (\d+) ([\d.]+) (\w+) (\w+) (ok|WRONG)(?: med=([\d.]+) min=([\d.]+))?")
RUN_LIMIT_S = 150


def arguments():
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="how many (5; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="few sizes, 2 ranks, no tuned entries; no file is changed")
    parser.add_argument("--suite", help="only these, separated by commas: " + ", ".join(s.name for s in suites.SUITES))
    parser.add_argument("--only", help="only these contestants, such as foldcast,intelmpi; foldcast is always one")
    parser.add_argument("--case-ms", type=int, default=150, help="time for a measurement in a round")
    parser.add_argument("--samples", type=int, default=41, help="batches in that time")
    parser.add_argument("--no-install", action="store_true", help="with what is installed already")
    parser.add_argument("--report", metavar="RESULTS", type=Path, help="only write the report of earlier results anew")
    return parser.parse_args()


def run(peer, suite, cases, args):
    """One contestant in one suite: the rows, the share of the cores that other programs used meanwhile, and seconds."""
    case_ms, samples = (max(1, amount // states.turns(suite)) for amount in (args.case_ms, args.samples))
    text = ",".join(":".join(map(str, case)) for case in cases)
    command = [str(part) for part in peer.command(suite.ranks, text)]
    begun, busy, own = time.monotonic(), machine.busy(), machine.own()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            env=peers.environment(peer, suite, case_ms, samples),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            cwd=tempfile.gettempdir(),
        )
        try:
            output, _ = process.communicate(timeout=RUN_LIMIT_S)
            ending = f"exit code {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            machine.kill_descendants()
            output, _ = process.communicate()
            ending = f"more than {RUN_LIMIT_S} s"
        except BaseException:
            # Such as Ctrl-C, which sessions of their own do not get.
            machine.kill_descendants()
            raise
        seconds = time.monotonic() - begun
        foreign = max(0.0, machine.busy() - busy - (machine.own() - own)) / seconds / machine.CORES
        rows = [match.groups() for match in map(LINE.match, output.splitlines()) if match]
        if ending:
            errors.seek(0)
            print(f"  {peer.name}: {ending}\n{errors.read()[-2000:]}", file=sys.stderr, flush=True)
    return rows, foreign, seconds


def records(number, run):
    """The lines of the results for a run that counts."""
    rows, foreign, _ = run.result
    peer = run.peer
    for size, dtype, _, us, op, mode, verdict, median, least in rows:
        if verdict != "ok":
            print(f"  *** {peer.name}: {size} {dtype} {op} {mode} is WRONG and left out", file=sys.stderr, flush=True)
            continue
        yield {
            "round": number,
            "turn": run.turn,
            "turns": states.turns(run.suite),
            "suite": run.suite.name,
            "peer": peer.name,
            "bytes": int(size),
            "dtype": dtype,
            "op": op,
            "mode": mode,
            "us": float(us),
            "median_us": median and float(median),
            "min_us": least and float(least),
            "foreign": round(foreign, 3),
            "line_round_trip_ns": run.trips,
            "tries": run.tries,
        }


def limits(number):
    """The copy limit of two ranks, by size."""
    sizes = ",".join(str(size) for size in suites.SIZES if size >= 16 << 10)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [peers.VENV / "foldcast", "bench", "allreduce", "--ranks", 2, "--sizes", sizes, "--out-of-place"]
        command += ["--case-ms", 1, "--samples", 1, "--json", file.name]
        machine.wait_until_quiet()
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
        for row in json.load(file)["results"]:
            yield {
                "round": number,
                "suite": "limit",
                "peer": "limit",
                "bytes": row["size_bytes"],
                "us": row["limit_us"],
            }


def contestants(args):
    found = []
    for peer in peers.PEERS:
        if args.only and peer.name not in args.only.split(",") and peer.name != "foldcast":
            continue
        if args.quick and peer.tuned:
            continue
        if peers.is_installed(peer):
            found.append(peer)
        else:
            print(f"peers: *** {peer.title} is not installed and LEFT OUT", file=sys.stderr, flush=True)
    return found


def rounds(args, log):
    chosen = [suites.quick(suite) if args.quick else suite for suite in suites.SUITES]
    wanted = args.suite.split(",") if args.suite else None
    chosen = [suite for suite in chosen if suite and (wanted is None or suite.name in wanted)]
    members = contestants(args)

    def measure(peer, suite):
        result = run(peer, suite, peers.cases_of(peer, suite), args)
        return result, result[-1]

    for number in range(args.rounds or (2 if args.quick else 5)):
        log(limits(number))
        turned = members[number % len(members) :] + members[: number % len(members)]
        parts = [part for suite in chosen for part in states.parts(suite, turned)]
        parts.sort(key=lambda part: part.turn)
        for done in states.run_all(parts, measure):
            if done.last:
                log(records(number, done))
            print(f"round {number + 1} {told(done)}", flush=True)


def told(done):
    """A run in a line."""
    rows, foreign, seconds = done.result
    cases = peers.cases_of(done.peer, done.suite)
    trips = " and ".join("?" if ns is None else f"{ns:.0f}" for ns in done.trips)
    text = f"{done.suite.name} {done.peer.name}: {len(rows)} of {len(cases)} cases, {seconds:.1f} s"
    text += f", other programs {foreign:.0%}"
    return f"{text}, cores {trips} ns apart" + ("" if done.last else ", to be repeated")


def main():
    args = arguments()
    if args.report:
        report.write(args.report.resolve(), quick=False)
        return
    if not args.no_install:
        install.main()
    machine.adopt_orphans()
    results = peers.HOME / "results" / time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
    results.mkdir(parents=True)
    about = {
        "machine": machine.describe(),
        "date": time.strftime("%Y-%m-%d"),
        "quick": args.quick,
        "case_ms": args.case_ms,
    }
    (results / "about.json").write_text(json.dumps(about))
    with open(results / "raw.jsonl", "a") as file:

        def log(rows):
            for row in rows:
                file.write(json.dumps(row) + "\n")
            file.flush()

        rounds(args, log)
    report.write(results, quick=args.quick or bool(args.suite or args.only))


if __name__ == "__main__":
    main()

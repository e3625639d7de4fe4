"""Kills ranks at random moments; every survivor must be told who died and how. ci/chaos.sh runs it.

chaos.py FACE --kills N [--seed S] [--only NUMBER] [--save FILE]     FACE: numpy, tensorflow, rust
chaos.py report FILE...
"""

import argparse
import os
import resource
import sys
import time

import cases

TARGET = os.environ.get("CARGO_TARGET_DIR", "target")


def player(face):
    """How a case is played, the kinds of deaths, the ways of calling, the longest delay in seconds."""
    if face == "rust":
        import launched

        def play(case, job):
            return launched.run(case, f"{TARGET}/release/foldcast", f"{TARGET}/release/examples/chaos")

        return play, launched.HOWS, launched.WAYS, 0.04
    import forked

    kind = forked.Numpy
    if face == "tensorflow":
        kind = forked.TensorFlow
        kind.load()
    return (lambda case, job: forked.run(case, kind, job)), ("kill", "segv", "exit", "exception"), kind.ways, 0.03


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("face", choices=["numpy", "tensorflow", "rust", "report"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", type=int)
    parser.add_argument("--save")
    given = parser.parse_args()
    if given.face == "report":
        return 0 if cases.table(given.files) else 1
    # What is killed need not be kept.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    play, hows, ways, longest = player(given.face)
    results = cases.Results(given.face)
    start = time.monotonic()
    for number in range(given.kills) if given.only is None else [given.only]:
        case = cases.Case.draw(f"{given.face}-{given.seed}", number, hows, ways, longest)
        outcome = play(case, f"chaos-{given.face}-{os.getpid()}-{number}")
        if isinstance(outcome, str):
            results.failures.append(f"{case}: {outcome}")
        else:
            results.add(case, *outcome)
        if len(results.failures) >= 10:
            break
    for failure in results.failures:
        again = f"tests/chaos/chaos.py {given.face} --seed {given.seed} --only NUMBER"
        print(f"chaos: {failure}\nrepeat: {again}", file=sys.stderr)
    seconds = time.monotonic() - start
    print(
        f"chaos: {given.face}: {results.kills} kills in {seconds:.0f} s, {len(results.failures)} failures", flush=True
    )
    if given.save:
        results.save(given.save)
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Compares instruction counts with those kept in ci/instructions.json: see ci/instructions.sh."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

KEPT = pathlib.Path(__file__).with_name("instructions.json")
# Counts repeat exactly. What is let pass is what a compiler may do to code that nobody touched.
TOLERANCE = 0.03


def count(program):
    """Run the program under callgrind; return the instructions of each of its cases."""
    with tempfile.TemporaryDirectory(prefix="foldcast-instructions-") as directory:
        options = [
            "--tool=callgrind",
            f"--callgrind-out-file={directory}/out",
            # Written in two ways: of two options with the same pattern callgrind takes the first only.
            "--toggle-collect=*measured*",
            "--dump-after=instructions::measured",
        ]
        run = subprocess.run(["valgrind", *options, program], capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"instructions: valgrind ended with {run.returncode}\n{run.stderr}")
        counts = {}
        for number, line in enumerate(run.stdout.splitlines(), 1):
            name, divisor = line.split("\t")
            dump = pathlib.Path(directory, f"out.{number}").read_text()
            total = int(re.search(r"^(?:summary|totals): (\d+)$", dump, re.MULTILINE).group(1))
            counts[name] = round(total / int(divisor), 1)
        return counts


def main():
    program, *arguments = sys.argv[1:]
    compiler = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    counts = count(program)
    if not counts or not all(counts.values()):
        sys.exit(f"instructions: nothing was counted: {counts}")
    if arguments == ["--update"]:
        KEPT.write_text(json.dumps({"compiler": compiler, "instructions": counts}, indent=2) + "\n")
        print(f"instructions: kept {len(counts)} counts in {KEPT.name}")
        return
    kept = json.loads(KEPT.read_text())
    off = []
    for name in sorted({*counts, *kept["instructions"]}):
        got, want = counts.get(name), kept["instructions"].get(name)
        if got is None or want is None:
            off.append(f"{name}: {'not counted here' if got is None else 'not among those kept'}")
        elif abs(got / want - 1) > TOLERANCE:
            off.append(f"{name}: {got}, kept {want} ({got / want - 1:+.1%})")
    for line in off:
        print(f"instructions: {line}")
    if off and compiler != kept["compiler"]:
        print(
            f"instructions: NOT JUDGED: {compiler} compiles otherwise than {kept['compiler']}, which the counts are of"
        )
    elif off:
        sys.exit("instructions: if the change is meant, keep the new counts: ci/instructions.sh --update")
    else:
        print(f"instructions: {len(counts)} counts within {TOLERANCE:.0%} of those kept")


if __name__ == "__main__":
    main()

"""Ranks in Rust under the launcher (crates/foldcast/examples/chaos.rs), which die at any moment from the start of the process on."""

import subprocess

from cases import CODES, Told

NAME = "rust"
WAYS = ("blocking", "submitted", "idle")
HOWS = ("kill", "segv", "abort", "exit", "panic", "unborn")
WATCHDOG = 60


def run(case, launcher, program):
    """Play a case. When the victim died (ns), and what the survivors said; or what went wrong, as a string."""
    words = [f"victim={case.victim}", f"how={case.how}", f"after_us={int(case.delay * 1e6)}"]
    words += [f"bytes={case.bytes}", f"way={case.way}", f"seed={case.number}"]
    command = [launcher, "run", "-n", str(case.ranks), "--keep-going", "--", program, *words]
    try:
        job = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WATCHDOG)
    except subprocess.TimeoutExpired as late:
        return f"the job does not end: {late.stdout} {late.stderr}"
    last = (job.stderr.strip().splitlines() or [""])[-1]
    if job.returncode != CODES[case.how] or f"rank {case.victim} failed first" not in last:
        return f"the launcher ended with {job.returncode}, its last word was: {last}"
    died, told, again = None, [], {}
    for line in job.stdout.splitlines():
        rank, _, said = line[1:].partition("] ")
        word, _, rest = said.partition(" ")
        if word == "dies":
            died = int(rest)
        elif word == "told":
            at, called, kind, text = rest.split(" ", 3)
            told.append(Told(int(rank), int(at), int(called), f"{kind}Error", text, ""))
        elif word == "again":
            again[int(rank)] = rest.split(" ")[0] + "Error"
    return died, [one._replace(again=again.get(one.rank, "")) for one in told]

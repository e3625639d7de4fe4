"""Kills jobs at random moments, ranks, launcher or both; afterwards nothing may be left of them. ci/leaks.sh runs it.

leaks.py N [--seed S] [--only NUMBER]

In namespaces of its own, as ci/leaks.sh gives it (LEAKS_ALONE=1), every process, socket and file that is there afterwards
counts; elsewhere those of which it is known that they are the job's.
"""

import argparse
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time

TARGET = os.environ.get("CARGO_TARGET_DIR", "target")
ALONE = os.environ.get("LEAKS_ALONE") == "1"
PLACES = ("/dev/shm", "/dev/mqueue", "/tmp", "/var/tmp")
WATCHDOG = 60  # seconds; what is there after them stays for ever
MARK = "FOLDCAST_LEAKS_MARK"
PYTHON_RANK = """
import foldcast, numpy as np
array = np.ones(1 << 15)
while True:
    foldcast.allreduce(array)
    foldcast.allreduce_async(array, name="x").wait()
"""


def processes(mark):
    """pid -> command of what is left."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            ours = ALONE or f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if ours and state not in "ZX":
            found[int(entry.name)] = command or entry.name
    return found


def sockets():
    lines = pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]
    return [line for line in lines if ALONE or "@foldcast" in line]


def files(home):
    found = set()
    for place in (*PLACES, home):
        if os.path.isdir(place):
            found.update(str(path) for path in pathlib.Path(place).glob("**/*" if ALONE else "*"))
    return {path for path in found if ALONE or "foldcast" in path.lower()}


def ipcs():
    found = []
    for table in pathlib.Path("/proc/sysvipc").glob("*"):
        found.extend(f"{table.name}: {line}" for line in table.read_text().splitlines()[1:])
    return found


def reap():
    """Take the orphans' endings, if they are this process's."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class Job:
    """A job that is killed."""

    def __init__(self, chosen, mark, home):
        self.chosen = chosen
        ranks = chosen.choice([1, 2, 2, 3, 4])
        if chosen.random() < 0.05:
            program, longest = [sys.executable, "-c", PYTHON_RANK], 0.6
        else:
            size = 8 << chosen.randrange(18)
            words = [f"bytes={size}", f"way={chosen.choice(['blocking', 'submitted', 'idle'])}"]
            program = [f"{TARGET}/release/examples/chaos", *words, f"children={int(chosen.random() < 0.3)}"]
            longest = 0.06
        self.whom = chosen.choice(["rank", "ranks", "launcher", "launcher", "all", "asked"])
        self.delay = chosen.uniform(0, longest)
        self.command = [f"{TARGET}/release/foldcast", "run", "-n", str(ranks), "--", *program]
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, MARK: mark, "HOME": home},
        )

    def ranks(self):
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        try:
            children = [int(pid) for pid in pathlib.Path(path).read_text().split()]
        except OSError:
            return []
        # What has not become another program yet, or is just about to, may be the guard, without which a job goes on.
        commands = [(pid, _cmdline(pid)) for pid in children]
        return [pid for pid, command in commands if command and not {b"guard", b"run"} & set(command.split(b"\0"))]

    def kill(self):
        time.sleep(self.delay)
        ranks = self.ranks()
        self.chosen.shuffle(ranks)
        pids = {"rank": ranks[:1], "ranks": ranks, "launcher": [], "all": ranks, "asked": []}[self.whom]
        number = signal.SIGKILL
        if self.whom == "asked":
            number = self.chosen.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        if self.whom in ("launcher", "all", "asked") or not pids:
            pids = [*pids, self.process.pid]
            self.chosen.shuffle(pids)
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def __str__(self):
        return f"{self.whom} after {self.delay * 1000:.1f} ms: {' '.join(self.command)}"


def _cmdline(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b"guard"


def left_over(mark, before, home):
    """What is left now, in words; nothing if nothing is."""
    left = [f"process {pid}: {command}" for pid, command in processes(mark).items()]
    left += [f"socket: {line}" for line in sockets()]
    left += sorted(files(home) - before[0])
    left += sorted(set(ipcs()) - before[1])
    return left


def play(number, seed, before, home):
    """Kill one job; how long it took until nothing was left, in seconds, or what is."""
    mark = f"{os.getpid()}-{number}"
    job = Job(random.Random(f"{seed}-{number}"), mark, home)
    job.kill()
    start = time.monotonic()
    code = None
    while True:
        code = job.process.poll() if code is None else code
        if ALONE and code is not None:
            reap()
        left = [] if code is not None else ["the launcher"]
        left = left or left_over(mark, before, home)
        took = time.monotonic() - start
        if not left:
            return took, None
        if took > WATCHDOG:
            for pid in processes(mark):
                os.kill(pid, signal.SIGKILL)
            return took, f"{job}: left: {'; '.join(left)}"
        time.sleep(0.002)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=int)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Under nohup the launcher would rightly ignore it.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    times, failures = [], []
    with tempfile.TemporaryDirectory(prefix="foldcast-leaks-") as home:
        before = files(home), set(ipcs())
        start = time.monotonic()
        for number in range(given.runs) if given.only is None else [given.only]:
            took, failure = play(number, given.seed, before, home)
            times.append(took)
            if failure:
                failures.append(f"run {number}: {failure}")
                print(f"leaks: {failures[-1]}", file=sys.stderr)
            if len(failures) >= 10:
                break
        seconds = time.monotonic() - start
    times.sort()
    where = "in namespaces of its own" if ALONE else "among other processes"
    print(
        f"leaks: {len(times)} jobs killed {where} in {seconds:.0f} s; everything was gone after "
        f"{times[len(times) // 2] * 1000:.0f} ms (median), {times[-1] * 1000:.0f} ms (longest); {len(failures)} leaks"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

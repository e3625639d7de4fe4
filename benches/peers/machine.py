"""Other programs on the machine, and processes that a run leaves."""

import ctypes
import os
import resource
import signal
import time

CORES = os.cpu_count()
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Makes what the runs start and leave children of this process: they are counted as its own, and found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def busy():
    """Seconds of all cores together that anything has run, since the machine started."""
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def own():
    """Those of processes that this one has started and that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_until_quiet(limit_s=10, share=0.15):
    """Waits until other programs use less than this share of the cores, but no longer than the limit."""
    start = time.monotonic()
    while time.monotonic() - start < limit_s:
        before = busy()
        time.sleep(0.25)
        if (busy() - before) / 0.25 / CORES < share:
            return


def descendants():
    """The processes that descend from this one."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(name))
        except OSError:
            pass  # it has just ended
    found, to_do = [], [os.getpid()]
    while to_do:
        next_ones = children.get(to_do.pop(), [])
        found += next_ones
        to_do += next_ones
    return found


def kill_descendants():
    for process in descendants():
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def describe():
    """The machine in a line."""

    def first(path, start):
        with open(path) as file:
            line = next((line for line in file if line.startswith(start)), "")
        return line.rstrip("\n").partition(":" if ":" in line else "=")[2].strip().strip('"')

    memory = int(first("/proc/meminfo", "MemTotal").split()[0]) / (1 << 20)
    system = first("/etc/os-release", "PRETTY_NAME")
    processor = first("/proc/cpuinfo", "model name")
    return f"{processor}, {CORES} cores, {memory:.0f} GiB, {system}, Linux {os.uname().release}"

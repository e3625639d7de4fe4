"""What belongs to the program stays the program's: its signals, its descriptors, its environment."""

import ctypes
import os
import pathlib
import resource
import signal
import subprocess
import time

import numpy as np

_libc = ctypes.CDLL(None)


def every_kind_of_call(size):
    """So that every thread of the library is there."""
    import foldcast

    large = np.ones(1 << 19, np.float32)
    assert foldcast.allreduce(large)[-1] == size
    assert foldcast.allreduce_async([1], name="a").wait().tolist() == [size]
    assert foldcast.broadcast([7]).tolist() == [7]
    foldcast.new_group(range(size), "other").barrier()


def of_the_process():
    """What a library could change, as the kernel sees it."""
    actions = []
    for number in range(1, 65):
        action = ctypes.create_string_buffer(256)
        known = _libc.sigaction(number, None, action) == 0
        # Handler, the kernel's part of the mask, flags; the rest is not written.
        actions.append(known and (action.raw[:16] + action.raw[136:140]).hex())
    return {
        "signal actions": actions,
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "timers": [signal.getitimer(timer) for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF)],
        "limits": [resource.getrlimit(number) for number in range(16)],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "cores": os.sched_getaffinity(0),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "death signal": _death_signal(),
    }


def _death_signal():
    number = ctypes.c_int()
    pr_get_pdeathsig = 2
    _libc.prctl(pr_get_pdeathsig, ctypes.byref(number))
    return number.value


def stays_as_it_was(rank, size):
    before = of_the_process()
    import foldcast

    imported = of_the_process()
    every_kind_of_call(size)
    during = of_the_process()
    foldcast.shutdown()
    for found in (imported, during, of_the_process()):
        changed = [name for name in found if found[name] != before[name]]
        assert not changed, changed


def test_nccl_704_signals_and_settings_are_left_alone(ranks):
    ranks(2, stays_as_it_was, env={"FOLDCAST_THREADS": "2"})


def own_threads():
    """name -> blocked signals of the library's threads."""
    found = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        if lines["Name"].startswith("foldcast"):
            found[lines["Name"]] = int(lines["SigBlk"], 16)
    return found


def takes_its_own_signals(rank, size):
    import foldcast

    every_kind_of_call(size)
    blocked = own_threads()
    assert {"foldcast-monito", "foldcast-progre", "foldcast-lane-1"} <= set(blocked), blocked
    wanted = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF}
    for name, mask in blocked.items():
        assert all(mask >> (number - 1) & 1 for number in wanted), (name, hex(mask))
    # A signal that the program waits for would end it if a thread of the library took it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    for _ in range(20):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.001)
        assert signal.sigtimedwait({signal.SIGUSR1}, 10).si_signo == signal.SIGUSR1
    foldcast.barrier()


def test_threads_of_the_library_take_no_signals(ranks):
    ranks(2, takes_its_own_signals, env={"FOLDCAST_THREADS": "2"})


def in_a_storm_of_signals(rank, size):
    """Two timers of 1 kHz, whose handlers do not restart system calls."""
    fired = []
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, lambda number, _: fired.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    import foldcast

    time.sleep(0.05 * rank)
    for number in range(60):
        array = np.full(1 << (number % 20), rank, np.float32)
        expected = sum(range(size))
        assert foldcast.allreduce(array)[-1] == expected
        assert foldcast.allreduce_async(array, name=f"{number}").wait()[0] == expected
        if number % 10 == 0:
            group = foldcast.new_group(range(size), f"storm {number}")
            time.sleep(0.02 * rank)
            assert group.allgather([rank]).tolist() == list(range(size))
            group.destroy()
    foldcast.shutdown()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.setitimer(signal.ITIMER_PROF, 0)
    assert fired.count(signal.SIGALRM) > 50, len(fired)


def test_nccl_1757_a_storm_of_signals_from_init_to_shutdown(ranks):
    ranks(3, in_a_storm_of_signals)


def descriptors():
    """number -> what it is, of those that a program started now would have."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.get_inheritable(int(number)):
                found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass  # the listing's own
    return found


def starts_programs(rank, size):
    import foldcast

    before = descriptors()
    every_kind_of_call(size)
    assert descriptors() == before
    listing = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True).stdout
    assert "foldcast" not in listing and "pidfd" not in listing and "eventpoll" not in listing, listing
    for number in range(100):
        assert subprocess.run(["true"], close_fds=bool(number % 2)).returncode == 0
        if number % 25 == 0:
            assert foldcast.allreduce([1]).tolist() == [size]
    assert foldcast.allreduce_async([1]).wait().tolist() == [size]


def test_horovod_2898_programs_inherit_nothing(ranks):
    job = ranks(2, starts_programs)
    assert job.stderr == "", job.stderr

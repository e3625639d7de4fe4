"""Environments that forbid something: limits, filters of system calls, tiny file systems, other users, containers. A job works
there, or says in one error what is missing and what to do."""

import os
import pathlib
import resource
import shlex
import signal
import subprocess
import time

import numpy as np

CALLS = [8, 1 << 10, 1 << 16, 1 << 20, 4 << 20]


def works(rank, size):
    import foldcast

    for count in CALLS:
        array = np.full(count, rank + 1, np.float32)
        assert foldcast.allreduce(array)[-1] == size * (size + 1) / 2
    assert foldcast.allreduce_async([1], name="a").wait().tolist() == [size]
    return True


def caught(call):
    import foldcast

    try:
        call()
    except foldcast.FoldcastError as error:
        return [type(error).__name__, str(error)]
    return None


# ---- limits ----


def test_nccl_550_sixty_four_descriptors_and_sixteen_ranks(ranks, foldcast):
    few = ("sh", "-c", 'ulimit -n 64; exec "$0" "$@"')
    # The launcher needs more than that, and says so before anything starts.
    refused = foldcast("run", "-n", "16", "true", within=few)
    assert refused.returncode == 125 and "16 ranks need 96 open files" in refused.stderr, refused.stderr
    assert "ulimit -n 96" in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
    # For the ranks it is enough.
    assert all(ranks(16, meets, rank_within=few).results)


def meets(rank, size):
    import foldcast

    assert foldcast.allreduce([1]).tolist() == [size]
    assert foldcast.new_group(range(size)).allreduce(np.ones(100_000))[-1] == size
    return True


def with_little_address_space(rank, size):
    import foldcast

    foldcast.init()
    if rank == 1:
        used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
    found = caught(lambda: foldcast.allreduce([1.0]))
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    # With what there is now another group works.
    assert foldcast.new_group(range(size), "again").allreduce([1]).tolist() == [size]
    return found


def test_too_little_address_space_is_one_clear_error(ranks):
    job = ranks(2, with_little_address_space)
    kind, text = job.results[1]
    assert kind == "ResourceError" and "shared memory" in text and "ulimit -v" in text, text
    kind, text = job.results[0]
    assert kind == "GroupAbortedError" and "rank 1 failed: see its own error" in text, text


def without_room_for_a_thread(rank, size):
    import foldcast

    if rank == 1:
        used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
        return caught(foldcast.init)
    return caught(lambda: foldcast.allreduce([1.0]))


def test_a_rank_without_room_for_its_threads_keeps_nobody_waiting(ranks):
    job = ranks(3, without_room_for_a_thread)
    kind, text = job.results[1]
    assert kind == "ResourceError" and "ulimit -v" in text, text
    for rank in (0, 2):
        kind, text = job.results[rank]
        assert kind in ("RankDiedError", "GroupAbortedError") and "rank 1 left in order" in text, text


def with_no_descriptor_left(rank, size, who):
    import foldcast

    foldcast.barrier()
    held = []
    if rank == who:
        # What the barrier needed is given back when nothing has changed for a while.
        counts = []
        while len(counts) < 100 or len(set(counts[-100:])) > 1:
            counts.append(len(os.listdir("/proc/self/fd")))
            time.sleep(0.005)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            # Memory of its own the first member can have only if there is a descriptor, and the library takes back what it
            # keeps for connections first.
            if who == 0:
                for _ in range(4):
                    os.close(held.pop())
    group = foldcast.new_group(range(size), "late")
    total = group.allreduce(np.ones(1000), timeout=60)[0]
    for number in held:
        os.close(number)
    return float(total)


def test_a_program_that_holds_all_descriptors_can_still_make_groups(ranks):
    for who in (0, 2):
        assert ranks(3, with_no_descriptor_left, who).results == [3.0] * 3


def with_small_files(rank, size):
    import foldcast

    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    found = caught(foldcast.init)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return found


def test_nccl_290_a_limit_on_the_size_of_files_is_named(ranks):
    for kind, text in ranks(3, with_small_files).results:
        assert kind == "ResourceError" and "RLIMIT_FSIZE" in text and "ulimit -f unlimited" in text, text
        assert "KiB of shared memory" in text or " B of shared memory" in text, text


# ---- filters of system calls ----


def says(rank, size):
    import foldcast

    return caught(foldcast.init)


def test_nccl_290_without_memfd_create_is_one_clear_error(ranks, without):
    for error in ("EPERM", "ENOSYS"):
        job = ranks(2, says, within=without("memfd_create", error=error))
        for kind, text in job.results:
            assert kind == "ResourceError" and "shared memory" in text, text
            assert "let the container's system call filter allow memfd_create" in text, text
        assert job.stderr == "", job.stderr


def test_ucx_8958_without_access_to_other_processes(ranks, without):
    denied = without("process_vm_readv", "process_vm_writev", "ptrace", "futex_waitv")
    job = ranks(2, works, within=denied)
    assert all(job.results) and job.stderr == "", job.stderr


def one_dies(rank, size, orphan):
    import foldcast

    foldcast.barrier()
    if rank == 1:
        subprocess.Popen(orphan, start_new_session=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return caught(lambda: foldcast.allreduce([1.0])) or caught(lambda: foldcast.allreduce([1.0]))


def is_alive(command):
    """Whether a process of this exact command line is there."""
    line = "\0".join([*command, ""]).encode()
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == line:
                return True
        except OSError:
            continue
    return False


def deaths_are_told(ranks, **options):
    orphan = ["sleep", f"1000.{os.getpid()}"]
    job = ranks(3, one_dies, orphan, launcher=["--keep-going"], expect=128 + signal.SIGKILL, **options)
    for rank in (0, 2):
        kind, text = job.results[rank]
        assert kind in ("RankDiedError", "GroupAbortedError"), text
        assert "rank 1 was killed by signal 9 (SIGKILL)" in text, text
    last = job.stderr.strip().splitlines()
    assert len(last) == 1 and last[0].startswith("foldcast run: rank 1 failed first"), job.stderr
    assert not is_alive(orphan)


def test_without_process_handles_deaths_are_told(ranks, without):
    for calls in (("pidfd_open", "pidfd_send_signal"), ("pidfd_send_signal",)):
        for error in ("EPERM", "ENOSYS"):
            deaths_are_told(ranks, within=without(*calls, error=error))


# ---- namespaces ----

TINY = "mount -t tmpfs -o size=1m none /dev/shm; echo garbage >/dev/shm/foldcast"
FULL = f"{TINY}; head -c 2000000 /dev/zero >/dev/shm/full 2>/dev/null || true"


def test_nccl_342_and_nccl_983_a_tiny_or_full_dev_shm(ranks, in_mounts):
    """No SIGBUS: nothing of ours lies there."""
    for script in (TINY, FULL):
        assert all(ranks(2, works, within=in_mounts(script)).results)


BENCH = ("bench", "allreduce", "--ranks", "2", "--sizes", "8,1M", "--case-ms", "50")


def test_nccl_tests_143_the_benchmark_with_a_full_dev_shm(foldcast, in_mounts):
    run = foldcast(*BENCH, within=in_mounts(FULL))
    assert run.returncode == 0, run.stderr


# Here ``$0`` is the launcher, and ``$@`` are its arguments.
OTHERS = """
for directory in /dev/shm /tmp; do
    for name in foldcast foldcast-$(id -u) foldcast_0_1 sem.foldcast; do
        : >$directory/$name.empty
        printf garbage >$directory/$name.short
        head -c 5000 /dev/urandom >$directory/$name
    done
    mkdir $directory/foldcast.directory
done
listing() { { find /dev/shm /tmp -xdev; find /dev/shm /tmp -xdev -type f -exec sha256sum {} +; } | sort; }
before=$(listing)
"$0" "$@"
[ "$(listing)" = "$before" ]
"""


def test_libfabric_6476_files_that_others_left(foldcast, in_mounts):
    """Empty, cut short or nonsense: they are not read, and neither changed nor joined by others."""
    # The files of this project stay in reach, also below /tmp.
    root = shlex.quote(str(pathlib.Path(__file__).resolve().parents[2]))
    own = f"mount --bind {root} /mnt; mount -t tmpfs -o size=1m none /tmp; mkdir -p {root}; mount --bind /mnt {root}"
    alone = in_mounts(f"mount -t tmpfs -o size=1m none /dev/shm; {own}")
    run = foldcast(*BENCH, within=(*alone, "sh", "-ec", OTHERS))
    assert run.returncode == 0, run


RESTARTS = """
for round in $(seq 20); do
    "$0" bench allreduce --ranks 2 --sizes 4M --case-ms 60000 >/dev/null 2>&1 &
    sleep 0.$((round % 4 + 1))
    kill -9 $!
    ! wait $!
done 2>/dev/null
[ -z "$(ls -A /dev/shm)" ]
[ "$(df --output=used /dev/shm | tail -n 1)" -eq 0 ]
"$0" "$@"
"""


def test_sglang_40723_twenty_restarts_after_sigkill(foldcast, in_mounts):
    """With room for no more than one job's memory, if it lay there."""
    alone = in_mounts("mount -t tmpfs -o size=16m none /dev/shm")
    run = foldcast(*BENCH, within=(*alone, "sh", "-ec", RESTARTS))
    assert run.returncode == 0, run


def test_ompi_4451_a_home_that_cannot_be_written(ranks, in_mounts):
    script = "mount -t tmpfs -o ro none /mnt"
    job = ranks(2, works, within=in_mounts(script), env={"HOME": "/mnt", "XDG_CACHE_HOME": None})
    assert all(job.results) and job.stderr == "", job.stderr


def test_ompi_4451_as_nobody(foldcast):
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    if os.geteuid() != 0 or foldcast("--version", within=nobody).returncode != 0:
        return  # only root can become another user; and the command may lie where nobody may not go
    # In Rust: the interpreter, too, may be where only its owner may go.
    run = foldcast(*BENCH, within=nobody, HOME="/nonexistent")
    assert run.returncode == 0, run.stderr


def test_llm_d_352_deaths_are_told_in_a_namespace_of_processes(ranks, in_processes):
    for proc in (("--mount-proc",), ()):
        deaths_are_told(ranks, within=in_processes(*proc), own_numbers=True)


# ---- one core ----


def many_small_calls(rank, size):
    import foldcast

    array = np.ones(1, np.float32)
    for _ in range(1000):
        assert foldcast.allreduce(array)[0] == size
    return True


def test_ompi_10426_four_ranks_on_one_core(ranks):
    core = str(min(os.sched_getaffinity(0)))
    assert all(ranks(4, many_small_calls, within=("taskset", "-c", core)).results)

"""The memory of results is used again when nobody holds it any more, and never before."""

import gc
import os
import pickle
import resource
import sys
import threading

import numpy as np
import pytest
from _ranks import report

LARGE = 1 << 18  # elements of float32: 1 MiB


def address(array):
    return array.__array_interface__["data"][0]


def pieces():
    import foldcast._foldcast

    return foldcast._foldcast._pool()


def used_again(rank, size):
    import foldcast

    x = np.full(LARGE, rank + 1, np.float32)
    total = size * (size + 1) / 2
    first = foldcast.allreduce(x)
    place = address(first)
    assert pieces() == (0, 0), "the piece in use is not idle"
    second = foldcast.allreduce(2 * x)
    assert address(second) != place and not np.shares_memory(first, second)
    assert (first == total).all() and (second == 2 * total).all()
    del first
    assert pieces() == (1, 1 << 20)
    third = foldcast.allreduce(3 * x)
    assert address(third) == place and (third == 3 * total).all() and (second == 2 * total).all()
    handle = foldcast.allreduce_async(x, name="a")
    fourth = handle.wait()
    assert not np.shares_memory(fourth, third) and not np.shares_memory(fourth, second)
    place = address(fourth)
    del fourth
    assert pieces()[0] == 0, "the handle still has it"
    del handle
    assert pieces()[0] == 1
    assert address(foldcast.allreduce(x)) == place


def test_memory_is_used_again(ranks):
    ranks(2, used_again)


def like_any_array(rank, size):
    import foldcast

    for dtype in ["int8", "float16", "float32", "float64"]:
        x = np.ones((3, 70_001), dtype)
        result = foldcast.allreduce(x)
        assert sys.getrefcount(result) == sys.getrefcount(x)
        assert type(result) is np.ndarray and result.shape == x.shape and result.dtype == x.dtype
        flags = result.flags
        assert flags.c_contiguous and flags.writeable and flags.aligned and not flags.f_contiguous
        assert address(result) % 64 == 0
        result += 1
        assert (result == size + 1).all()
        same = pickle.loads(pickle.dumps(result))
        assert np.array_equal(same, result) and memoryview(result).nbytes == result.nbytes
        with pytest.raises(ValueError, match="resize"):
            result.resize(1)
        assert foldcast.allreduce(np.ones((3, 0, 70_001), dtype)).shape == (3, 0, 70_001)
    small = foldcast.allreduce(np.ones(10, np.float32))
    assert small.flags.owndata, "small results are numpy's own"


def test_a_result_is_like_any_array(ranks):
    ranks(2, like_any_array)


def views(rank, size):
    """Whatever still refers to a result keeps its memory."""
    import foldcast

    x = np.full(LARGE, 1, np.float32)
    for view in [lambda a: a[5:6], lambda a: a.reshape(2, -1).T, memoryview, lambda a: np.frombuffer(a, np.uint8)]:
        held = view(foldcast.allreduce(x))
        gc.collect()
        assert pieces()[0] == 0, "the view holds the memory"
        others = [foldcast.allreduce(7 * x) for _ in range(3)]
        values = np.asarray(held).reshape(-1).view(np.uint8)[:4].view(np.float32)
        assert values[0] == size, "nobody has written it"
        del held, values, others
        gc.collect()
        assert pieces()[0] == 4
        kept = [foldcast.allreduce(x) for _ in range(4)]
        assert pieces()[0] == 0
        del kept
        foldcast.shutdown()
        assert pieces() == (0, 0)
        foldcast.init()


def test_views_keep_the_memory(ranks):
    ranks(2, views)


def bounded(rank, size):
    """Results of ever other sizes: what is kept stays within the limits, and so does the process."""
    import foldcast

    peak = None
    for step in range(700):
        count = 20_000 + 7_001 * step % 900_000
        result = foldcast.allreduce(np.ones(count, np.float32))
        assert result[0] == result[-1] == size
        del result
        number, idle = pieces()
        assert number <= 64 and idle <= 8 << 20, (number, idle)
        if step == 300:  # every size was there, twice
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown < 16 << 10, f"the process has grown by {grown} KiB"
    # Larger than the limit: never kept.
    foldcast.allreduce(np.ones(3 << 20, np.float32))
    assert pieces()[1] <= 8 << 20


def test_what_is_kept_is_bounded(ranks):
    # The inputs, too, are mappings of their own: else the holes in malloc's heap, other ones in each run, are counted with it.
    ranks(2, bounded, env={"FOLDCAST_POOL_BYTES": str(8 << 20), "MALLOC_MMAP_THRESHOLD_": "65536"})


def nothing_kept(rank, size):
    import foldcast

    for _ in range(3):
        assert (foldcast.allreduce(np.ones(LARGE, np.float32)) == size).all()
        assert pieces() == (0, 0)


def test_nothing_is_kept_if_so_chosen(ranks):
    ranks(2, nothing_kept, env={"FOLDCAST_POOL_BYTES": "0"})


def refused(rank, size):
    import foldcast

    with pytest.raises(foldcast.InvalidArgumentError, match="FOLDCAST_POOL_BYTES.*'?\"?1G"):
        foldcast.init()


def test_a_limit_that_is_no_number_is_refused(ranks):
    ranks(1, refused, env={"FOLDCAST_POOL_BYTES": "1G"})


def after_the_end(rank, size):
    import foldcast

    x = np.full(LARGE, 1, np.float32)
    idle, held = foldcast.allreduce(x), foldcast.allreduce(x)
    del idle
    assert pieces()[0] == 1
    foldcast.shutdown()
    assert pieces() == (0, 0), "given back at the end"
    assert (held == size).all()
    held += 1
    del held
    assert pieces() == (0, 0), "after the end nothing is kept"
    return True


def test_results_survive_shutdown(ranks):
    assert ranks(2, after_the_end).results == [True, True]


def at_exit(rank, size):
    import foldcast

    global kept
    kept = foldcast.allreduce(np.full(LARGE, 1, np.float32))
    report(True)


def test_results_may_live_until_the_interpreter_ends(ranks):
    job = ranks(2, at_exit)
    assert job.results == [True, True] and not job.stderr, job.stderr


def threads_and_forks(rank, size):
    """Freed on other threads, and in a forked child, whose memory is its own."""
    import foldcast

    x = np.full(LARGE, 1, np.float32)
    held = [foldcast.allreduce(x)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert pieces()[0] == 1

    result = foldcast.allreduce(x)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            result += 5
            if (result == size + 5).all():
                del result
                foldcast.shutdown()
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert (result == size).all(), "the child wrote its own memory"
    assert (foldcast.allreduce(x) == size).all()

    # Many threads that make and free at once, by named calls.
    def work(name):
        for turn in range(20):
            got = foldcast.allreduce(turn * x, name=name)
            assert (got == turn * size).all()

    failed = []
    previous, threading.excepthook = threading.excepthook, lambda args: failed.append(args.exc_value)
    workers = [threading.Thread(target=work, args=(f"n{at}",)) for at in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    threading.excepthook = previous
    assert not failed, failed


def test_memory_is_freed_on_any_thread_and_in_a_child(ranks):
    ranks(2, threads_and_forks)

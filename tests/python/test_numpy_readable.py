"""Arrays from ``foldcast.empty``, which all ranks read where they are."""

import gc
import os
import signal
import time

import _oracle
import numpy as np
import pytest
from _ranks import ready, report

COUNT = 300_007  # elements of float32: more than 512 KiB, no whole number of lines


def read_of_others():
    """KiB of other ranks' memory that this process has read where it is: nothing else is mapped for reading alone."""
    theirs, kib = False, 0
    with open("/proc/self/smaps") as file:
        for line in file:
            if "memfd:foldcast" in line:
                theirs = " r--s " in line
            elif theirs and line.startswith("Rss:"):
                kib += int(line.split()[1])
                theirs = False
    return kib


def reads_of_others(array):
    """Calls on this array until all ranks have read the others' memory."""
    import foldcast

    for _ in range(1000):
        if foldcast.allreduce(np.array([read_of_others() > 0], np.uint8), "min")[0]:
            return True
        foldcast.allreduce(array, "max", out=array)
    return False


def like_any_array(rank, size):
    import foldcast

    for shape, extents in [(7, (7,)), ((3, 5), (3, 5)), ([2, 0], (2, 0)), ((), ()), (np.int64(4), (4,))]:
        made = foldcast.empty(shape)
        assert type(made) is np.ndarray and made.shape == extents and made.dtype == np.float64
    for name in _oracle.DTYPES:
        made = foldcast.empty((4, 1000), _oracle.dtype(name))
        assert made.dtype == _oracle.dtype(name) and made.flags.c_contiguous and made.flags.writeable
        assert made.__array_interface__["data"][0] % 4096 == 0
        made[...] = 3
        assert (made[1:, ::2] == 3).all()
    for shape in [-1, 2.5, "3", None, (3, -1), (1 << 62, 4)]:
        with pytest.raises(foldcast.InvalidArgumentError, match="shape"):
            foldcast.empty(shape)
    for dtype in ["complex64", ">f4", "no such", object]:
        with pytest.raises(foldcast.InvalidArgumentError, match="dtype"):
            foldcast.empty(3, dtype)
    with pytest.raises(foldcast.ResourceError, match="FOLDCAST_ARENA_BYTES"):
        foldcast.empty(1 << 30, np.uint8)


def test_they_are_like_any_array(ranks):
    ranks(2, like_any_array, env={"FOLDCAST_ARENA_BYTES": str(1 << 24)})


def test_in_a_world_of_one_they_are_numpys_own(ranks):
    ranks(1, like_any_array_alone)


def like_any_array_alone(rank, size):
    import foldcast

    array = foldcast.empty((10, 2), "int16")
    array[...] = 5
    assert (foldcast.allreduce(array) == 5).all() and array.flags.c_contiguous


def right_results(rank, size):
    import foldcast

    x, out = (foldcast.empty(COUNT, np.float32) for _ in range(2))
    assert reads_of_others(out)
    before = read_of_others()
    for reduction in _oracle.REDUCTIONS:
        inputs = [_oracle.pool("float32", COUNT, seed=each) for each in range(size)]
        want = _oracle.bits(_oracle.allreduce(inputs, reduction))
        x[...] = inputs[rank]
        assert foldcast.allreduce(x, reduction, out=out) is out
        assert np.array_equal(_oracle.bits(out), want) and np.array_equal(_oracle.bits(x), _oracle.bits(inputs[rank]))
        # Named, submitted, a view, in place.
        views = [(x[:], out[:]), (x.reshape(-1, 1), out.reshape(-1, 1)), (x, x)]
        for at, (source, target) in enumerate(views):
            handle = foldcast.allreduce_async(source, reduction, out=target, name=f"call-{at}")
            assert np.array_equal(_oracle.bits(handle.wait()).ravel(), want)
        # One rank's result goes elsewhere: the usual way, for all.
        x[...] = inputs[rank]
        target = None if rank == size - 1 else out
        assert np.array_equal(_oracle.bits(foldcast.allreduce(x, reduction, out=target)), want)
    # Told by all at once: where one has ended, its memory is read no more.
    assert foldcast.allreduce(np.array([read_of_others() >= before > 0], np.uint8), "min")[0]


def test_results_are_right(ranks):
    for size in (2, 3, 4, 5):
        ranks(size, right_results)


def again_and_again(rank, size):
    """Memory goes back when arrays and views have gone, and what is made anew is seen by all at once."""
    import foldcast

    held = foldcast.empty(COUNT, np.float32)
    assert reads_of_others(held)
    for turn in range(40):
        made = foldcast.empty(COUNT, np.float32)
        assert not np.shares_memory(made, held)
        made[...] = turn + rank
        view = made[1:]
        foldcast.allreduce(made, out=made)
        del made
        gc.collect()
        assert (view == size * turn + size * (size - 1) / 2).all()
        del view
        held[...] = 1
        assert (foldcast.allreduce(held, out=held) == size).all()
    taken = shared_kib()
    large = foldcast.empty(16 << 20, np.uint8)
    large[...] = 1
    assert shared_kib() >= taken + (15 << 10)
    del large
    assert shared_kib() < taken + (2 << 10)
    foldcast.shutdown()
    held[...] = 2
    foldcast.init()
    assert (foldcast.allreduce(held) == 2 * size).all(), "memory of before is private now"
    again = foldcast.empty(COUNT, np.float32)
    assert reads_of_others(again)


def shared_kib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssShmem"))


def test_memory_goes_back(ranks):
    ranks(2, again_and_again)


def forks(rank, size):
    import foldcast

    array = foldcast.empty(COUNT, np.float32)
    assert reads_of_others(array)
    array[...] = 7
    child = os.fork()
    if child == 0:
        try:
            for call in (lambda: foldcast.empty(3), lambda: foldcast.allreduce(np.ones(3))):
                try:
                    call()
                except foldcast.ForkedProcessError:
                    continue
                os._exit(1)
            del array  # must not take the parent's memory away
            gc.collect()
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert (array == 7).all()
    assert (foldcast.allreduce(array, out=array) == 7 * size).all()


def test_a_forked_child_leaves_them_alone(ranks):
    ranks(2, forks)


def until_it_ends(rank, size):
    import foldcast

    array = foldcast.empty(6 << 20, np.float32)
    assert reads_of_others(array)
    ready("calls")
    try:
        while True:
            array[...] = 1
            assert foldcast.allreduce(array, out=array)[-1] == size
    except foldcast.FoldcastError as error:
        told = [type(error).__name__, error.rank]
    rest = foldcast.new_group([other for other in range(size) if other != 1])
    array[...] = rank
    total = sum(other for other in range(size) if other != 1)
    report([*told, bool((rest.allreduce(array, out=array) == total).all())])


def test_a_killed_rank_is_named_and_the_others_go_on(ranks):
    with ranks.start(3, until_it_ends, launcher=["--keep-going"]) as job:
        for rank in range(3):
            job.wait_ready(rank, "calls")
        time.sleep(0.1)
        job.kill(1)
        job.finish(expect=128 + signal.SIGKILL)
        assert job.results == [["RankDiedError", 1, True], None, ["RankDiedError", 1, True]]

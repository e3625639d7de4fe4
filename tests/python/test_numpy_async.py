"""allreduce_async and its handles."""

import gc
import threading
import time

import numpy as np


def many_at_once(rank, size):
    import foldcast

    random = np.random.default_rng(rank)
    # Named calls meet by name, whatever the order in which a rank submits them.
    handles = {}
    for number in random.permutation(40):
        array = np.full(1 + 997 * number, number + rank, np.int64)
        handles[number] = foldcast.allreduce_async(array, name=f"call {number}")
    for number in random.permutation(40):
        result = handles[number].wait()
        assert result.shape == (1 + 997 * number,)
        assert (result == size * number + sum(range(size))).all(), number
        assert handles[number].done() and handles[number].wait() is result

    # Unnamed ones meet in order; a blocking call behind them takes its turn.
    unnamed = [foldcast.allreduce_async(np.full(5000, i, np.float32), "max") for i in range(20)]
    assert foldcast.allreduce([20 + rank], "min").tolist() == [20]
    assert [handle.wait()[-1] for handle in unnamed] == list(range(20))

    # A name may be used again, also before the first use has ended: uses meet in order.
    again = [foldcast.allreduce_async([i], name="again") for i in range(10)]
    assert [handle.wait().tolist() for handle in again] == [[size * i] for i in range(10)]


def arrays_of_running_calls(rank, size):
    import foldcast

    # Nobody but the call holds these arrays.
    handles = [foldcast.allreduce_async(np.full(1 << 18, i, np.float32), name=str(i)) for i in range(20)]
    gc.collect()
    trash = [np.full(1 << 18, 99, np.float32) for _ in range(20)]
    assert [float(handle.wait().mean()) for handle in handles] == [size * i for i in range(20)]
    del trash

    # Handles that are thrown away: their calls run all the same.
    outs = [np.full(1000, -1, np.int32) for _ in range(10)]
    for number, out in enumerate(outs):
        foldcast.allreduce_async(np.full(1000, number, np.int32), out=out)
    foldcast.barrier()
    assert [(out == size * number).all() for number, out in enumerate(outs)] == [True] * 10

    # In place, and a snapshot of what is not contiguous.
    array = np.full(100, rank, np.float64)
    assert foldcast.allreduce_async(array, out=array).wait() is array
    assert (array == sum(range(size))).all()
    columns = np.zeros((50, 2), np.float32)
    handle = foldcast.allreduce_async(columns[:, 1])
    columns[:] = 5
    assert not handle.wait().any()


def waiting(rank, size):
    import foldcast
    from _ranks import ready

    foldcast.init()
    array = np.array([rank], np.float32)
    if rank == 0:
        begun = time.monotonic()
        handle = foldcast.allreduce_async(array)
        assert not handle.done() and "running" in repr(handle)
        for limit in (0.01, 0.2):
            try:
                handle.wait(timeout=limit)
            except foldcast.DeadlineError as error:
                assert isinstance(error, TimeoutError)
                assert "rank 0" in str(error) and "goes on" in str(error) and "allreduce" in str(error)
                assert limit <= error.elapsed <= time.monotonic() - begun
                assert (error.op, error.group) == ("allreduce", "hccl_world_group")
            else:
                raise AssertionError("the others are not there yet")
        for wrong in (0, -1, float("nan"), "soon"):
            try:
                handle.wait(wrong)
            except foldcast.InvalidArgumentError as error:
                assert error.field == "timeout"
            else:
                raise AssertionError(wrong)
        ready("waited")
        got = []
        threads = [threading.Thread(target=lambda: got.append(handle.wait())) for _ in range(3)]
        for thread in threads:
            thread.start()
        result = handle.wait(timeout=float("inf"))
        for thread in threads:
            thread.join()
        assert all(other is result for other in got) and len(got) == 3
        assert "ended" in repr(handle)
    else:
        wait_for("0.waited.ready")
        result = foldcast.allreduce_async(array).wait(60)
    assert result.tolist() == [sum(range(size))]


def wait_for(mark):
    import os
    import pathlib

    while not (pathlib.Path(os.environ["FOLDCAST_TEST_DIRECTORY"]) / mark).exists():
        time.sleep(0.005)


def errors_of_a_call(rank, size):
    import foldcast

    handle = foldcast.allreduce_async(np.zeros(3 + (rank == 1), np.float32), name="odd")
    for _ in range(2):  # each wait raises anew
        try:
            handle.wait()
        except foldcast.MismatchError as error:
            assert (error.field, error.tag, error.op) == ("count", "odd", "allreduce"), vars(error)
        else:
            raise AssertionError("no mismatch")
    assert handle.done()
    assert foldcast.allreduce_async([1], name="odd").wait().tolist() == [size]

    group = foldcast.new_group(range(size), "short")
    if rank == 0:
        handle = group.allreduce_async([1.0], timeout=0.2)
        try:
            handle.wait()
        except foldcast.DeadlineError as error:
            assert handle.done() and error.rank == 1 and "rank 1" in str(error), str(error)
        else:
            raise AssertionError("nobody else called")
    foldcast.barrier()


def test_many_at_once_on_2_ranks(ranks):
    ranks(2, many_at_once)


def test_many_at_once_on_5_ranks(ranks):
    ranks(5, many_at_once)


def test_arrays_of_running_calls(ranks):
    ranks(3, arrays_of_running_calls)


def test_waiting(ranks):
    ranks(3, waiting)


def test_errors_of_a_call(ranks):
    ranks(3, errors_of_a_call)


def waits_in_turns(rank, size):
    """What one rank waits for before a blocking call another one waits for after it: who waits for one call must hold up no other."""
    import foldcast

    array = np.full(64, rank + 1, np.float32)
    total = size * (size + 1) / 2
    for _ in range(300):
        named = foldcast.allreduce_async(array, name="named")
        unnamed = foldcast.allreduce_async(array)
        if rank == 0:
            assert unnamed.wait()[0] == total
            assert foldcast.allreduce(array)[0] == total
            assert named.wait()[0] == total
        else:
            assert named.wait()[0] == total
            assert unnamed.wait()[0] == total
            assert foldcast.allreduce(array)[0] == total
    return True


def test_waiting_for_one_call_holds_up_no_other(ranks):
    assert ranks(2, waits_in_turns, env={"FOLDCAST_TIMEOUT": "60"}).results == [True] * 2


def waits_from_threads(rank, size):
    """Threads wait for calls of their own, while another one makes blocking calls."""
    import threading

    import foldcast

    wrong = []

    def works(number):
        group = foldcast.new_group(range(size), f"group of thread {number}")
        for step in range(200):
            array = np.full(16, step, np.int64)
            handles = [group.allreduce_async(array + number, name=f"{number} {part}") for part in range(3)]
            if number == 0:
                wrong.extend(step for got in [group.allreduce(array)] if got[0] != step * size)
            wrong.extend(step for handle in handles if handle.wait()[0] != (step + number) * size)

    threads = [threading.Thread(target=works, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_threads_wait_each_for_its_own_calls(ranks):
    assert ranks(2, waits_from_threads, env={"FOLDCAST_TIMEOUT": "60"}).results == [[], []]

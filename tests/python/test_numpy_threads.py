"""Threads of one rank."""

import threading
import time

import numpy as np


def two_unnamed_calls(rank, size):
    import foldcast

    group = foldcast.new_group(range(size), "shared")
    foldcast.barrier()
    outcomes = []

    def call(value):
        try:
            outcomes.append(group.allreduce(np.full(3, value)).tolist())
        except foldcast.FoldcastError as error:
            outcomes.append(error)

    if rank == 0:
        threads = [threading.Thread(target=call, args=(value,)) for value in (1, 100)]
        threads[0].start()
        time.sleep(0.3)
        threads[1].start()
        threads[1].join()  # it is refused while the first still waits for the others
        assert len(outcomes) == 1, outcomes
        assert isinstance(outcomes[0], foldcast.InvalidArgumentError) and "name" in str(outcomes[0]), outcomes
        foldcast.barrier()
        threads[0].join()
        assert outcomes[1:] == [[1 + 10 * (size - 1)] * 3], outcomes
    else:
        foldcast.barrier()
        call(10)
        assert outcomes == [[1 + 10 * (size - 1)] * 3], outcomes
    # And on.
    assert group.allreduce([1]).tolist() == [size]


def never_crossed(rank, size):
    """Threads that race in unnamed calls: a sum is right, or there is an error."""
    import foldcast

    group = foldcast.new_group(range(size), "raced")
    wrong, sums = [], []

    def loop():
        for _ in range(200):
            try:
                result = group.allreduce(np.full(2, 10**rank), timeout=20)
            except foldcast.FoldcastError:
                continue
            sums.append(1)
            if result.tolist() != [11, 11]:
                wrong.append(result.tolist())

    threads = [threading.Thread(target=loop) for _ in range(2 if rank == 0 else 1)]
    for thread in threads:
        thread.start()
    # Refused calls are not made up for, so the ranks may come to different numbers of calls: end them together.
    for thread in threads:
        thread.join(1)
    group.abort()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    assert foldcast.allreduce([1]).tolist() == [size]


def named_calls(rank, size):
    import foldcast

    totals = {}

    def loop(name):
        for number in range(50):
            totals[name, number] = int(foldcast.allreduce([number * (rank + 1)], name=name)[0])

    threads = [threading.Thread(target=loop, args=(f"thread {i}",)) for i in range(4)]
    for thread in threads if rank % 2 else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert len(totals) == 200
    for (_, number), total in totals.items():
        assert total == number * sum(range(size + 1))


def the_others_run_on(rank, size):
    """The GIL is free while a call waits."""
    import foldcast

    foldcast.barrier()
    if rank:
        time.sleep(1)
        foldcast.allreduce([1.0])
        foldcast.allreduce_async([1.0]).wait()
        return
    ticks = []

    def tick():
        while len(ticks) < 1000:
            ticks.append(time.monotonic())
            time.sleep(0.005)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    foldcast.allreduce([1.0])
    while_waiting = len(ticks)
    assert while_waiting > 20, while_waiting
    foldcast.allreduce_async([1.0]).wait()


def in_another_thread(rank, size):
    import foldcast

    results = []
    thread = threading.Thread(target=lambda: results.append(foldcast.allreduce([rank]).tolist()))
    thread.start()  # init too happens there
    thread.join()
    assert results == [[sum(range(size))]]
    assert foldcast.allreduce([rank]).tolist() == [sum(range(size))]


def init_in_many_threads(rank, size):
    import foldcast

    seen = []
    threads = [threading.Thread(target=lambda: seen.append(foldcast.rank())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [rank] * 8


def test_two_unnamed_calls(ranks):
    ranks(3, two_unnamed_calls)


def test_never_crossed(ranks):
    ranks(2, never_crossed)


def test_named_calls(ranks):
    ranks(3, named_calls)


def test_the_others_run_on(ranks):
    ranks(2, the_others_run_on)


def test_in_another_thread(ranks):
    ranks(2, in_another_thread)


def test_init_in_many_threads(ranks):
    ranks(2, init_in_many_threads)

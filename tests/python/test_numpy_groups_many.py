"""R10, R11: many groups. Overlapping ones used at once, hundreds made and destroyed, some destroyed in the midst of calls."""

import itertools
import os
import threading
import time

import numpy as np


def subsets(size):
    """All groups of two or more ranks."""
    return [ranks for count in range(2, size + 1) for ranks in itertools.combinations(range(size), count)]


def overlapping(rank, size):
    """A group for each subset; several threads for each group, all at once, each rank in another order."""
    import foldcast

    groups = [foldcast.new_group(ranks, f"of {ranks}") for ranks in subsets(size)]
    failures, calls = [], []

    def work(group, lane):
        try:
            for number in range(20):
                # Small and large, blocking and not, by turns.
                array = np.full([3, 5000][number % 2], 10**rank + number, np.int64)
                call = group.allreduce if lane % 2 else lambda *a, **k: group.allreduce_async(*a, **k).wait()
                result = call(array, name=f"lane {lane}")
                right = sum(10**member + number for member in group.ranks)
                assert (result == right).all(), (group.name, lane, number, result[0], right)
                calls.append(1)
        except BaseException as error:
            failures.append((group.name, lane, error))

    mine = [(group, lane) for group in groups if group.rank >= 0 for lane in range(3)]
    threads = [threading.Thread(target=work, args=each) for each in mine[rank:] + mine[:rank]]
    for thread in threads[:: -1 if rank % 2 else 1]:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert len(calls) == 20 * len(mine)
    for group in groups:
        if group.rank < 0:
            try:
                group.allreduce([1])
            except foldcast.NotInGroupError as error:
                assert error.rank == rank and str(rank) not in str(error).split("has ")[1]
            else:
                raise AssertionError(group.name)
    return len(mine)


def test_r10_overlapping_groups_at_once_from_several_threads(ranks):
    job = ranks(4, overlapping)
    # Of four ranks' 11 subsets, each rank is in 7.
    assert job.results == [21] * 4


def held():
    """What this process holds of the system: descriptors, threads, KiB of memory, mappings."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    with open("/proc/self/maps") as maps:
        mappings = sum(1 for _ in maps)
    memory = sum(int(fields[key].split()[0]) for key in ("RssAnon", "RssShmem"))
    return len(os.listdir("/proc/self/fd")), int(fields["Threads"]), memory, mappings


def hundreds(rank, size, members_only):
    """Groups made, used in every way and destroyed, rounds of every subset: what the process holds stays the same.

    What a group left behind would be more after each stretch of rounds. What is counted once goes up in some of them, at a time
    that nobody knows: the black boxes of other ranks, which a process looks into when it has waited for them, or what peers
    are still about to give back. So the least growth of the stretches counts.
    """
    import foldcast

    array = np.full(100_000, rank, np.float32)

    def one_round(number):
        for place, ranks in enumerate(subsets(size)):
            member = rank in ranks
            if members_only and not member:
                continue
            # By turns: a name for each, one name for all in turn, none.
            name = [f"round {number} of {ranks}", "the one name", None][(number + place) % 3]
            group = foldcast.new_group(ranks, name)
            if member:
                assert group.allreduce(array)[-1] == sum(ranks)
                assert group.allreduce_async(array[:9], "max").wait()[0] == max(ranks)
                assert group.allreduce(array[:9], name="named")[0] == sum(ranks)
            group.destroy()
        foldcast.barrier()

    def settled():
        # Peers unmap and close on their own time.
        found = held()
        for _ in range(50):
            time.sleep(0.02)
            again = held()
            if again == found:
                return found
            found = again
        return found

    rounds, levels = 12, []
    for stretch in range(4):
        for number in range(rounds):
            one_round(stretch * rounds + number)
        levels.append(settled())
    growths = [[after - before for before, after in zip(*pair)] for pair in zip(levels, levels[1:])]
    descriptors, threads, memory, mappings = (min(growth) for growth in zip(*growths))
    groups = rounds * len(subsets(size))
    what = f"descriptors, threads, KiB, mappings, after {groups} groups each: {levels}"
    assert descriptors < groups / 20, what
    assert threads <= 0, what
    # A group's memory is more than a MiB a rank; 2 KiB for each is less than any of its parts.
    assert memory < 2 * groups, what
    assert mappings < groups / 20, what
    return groups


def test_r10_hundreds_of_groups_leave_nothing_behind(ranks):
    assert ranks(4, hundreds, False, timeout=300).results == [132] * 4


def test_r10_groups_that_their_members_alone_make(ranks):
    assert ranks(3, hundreds, True, timeout=300).results == [48] * 3


def destroyed_in_flight(rank, size):
    """A rank destroys a group while its call waits for the others: that is refused, and changes nothing. After abort() it
    is not: nobody crashes, nobody waits for the deadline."""
    import foldcast

    seen = 0
    ways = itertools.product((1, 1000, 500_000), (False, True), (False, True), (0, size - 1), (False, True))
    for count, named, met, leaver, abort in ways:
        group = foldcast.new_group(range(size), "g")
        name = "n" if named else None
        array = np.full(count, rank, np.float32)
        if met:
            group.barrier()
        if rank == leaver:
            handle = group.allreduce_async(array, name=name)
            try:
                group.destroy()
            except foldcast.InvalidArgumentError as error:
                assert all(part in str(error) for part in (f"rank {rank}", "'g'", "1 call in flight", "abort()")), error
            else:
                raise AssertionError("a group with a call in flight was destroyed")
            if abort:
                group.abort()
                group.destroy()
            foldcast.barrier()
            calls = [handle.wait]
            if abort:
                calls.append(lambda: group.allreduce(array, name=name))  # noqa: B023
            expected = (foldcast.ClosedError, foldcast.GroupAbortedError)
        else:
            foldcast.barrier()
            calls = [lambda: group.allreduce(array, name=name, timeout=100)]  # noqa: B023
            expected = foldcast.GroupAbortedError
        for call in calls:
            try:
                result = call()
            except expected as error:
                assert abort and (rank == leaver or error.rank == leaver), str(error)
            else:
                # What the leaver had given before the abort still counts.
                assert (result == sum(range(size))).all(), (count, named, met, leaver, abort)
                assert not (abort and rank == leaver and call is not handle.wait)
            seen += 1
        foldcast.barrier()
        if rank != leaver or not abort:
            group.destroy()
        again = foldcast.new_group(range(size), "g")
        assert (again.allreduce(array) == sum(range(size))).all()
        again.destroy()
    return seen


def test_r10_a_group_destroyed_in_the_midst_of_a_call(ranks):
    assert ranks(3, destroyed_in_flight).results == [60, 48, 60]


def destroyed_by_another_thread(rank, size):
    """Threads call while another one destroys the group: every call ends, with a result or an error."""
    import foldcast

    outcomes = []
    for number in range(15):
        group = foldcast.new_group(range(size), "g")
        array = np.full(2000, rank, np.float32)

        def work(lane):
            while True:
                try:
                    assert group.allreduce(array, name=f"lane {lane}", timeout=100)[0] == sum(range(size))  # noqa: B023
                except foldcast.FoldcastError as error:
                    outcomes.append(type(error).__name__)
                    return

        threads = [threading.Thread(target=work, args=(lane,)) for lane in range(3)]
        for thread in threads:
            thread.start()
        if rank == number % size:
            # At least one call was begun here: a group that a member never called on is not known to it.
            begun = group.allreduce_async(array, name="begun")
            time.sleep(0.002 * (number % 5))
            group.abort()
            group.destroy()
        for thread in threads:
            thread.join()
        foldcast.barrier()
        if rank != number % size:
            group.destroy()
        else:
            try:
                begun.wait()
            except (foldcast.ClosedError, foldcast.GroupAbortedError):
                continue
            raise AssertionError("nobody else made that call")
    assert len(outcomes) == 45 and set(outcomes) <= {"ClosedError", "RankDiedError", "GroupAbortedError"}, outcomes
    assert foldcast.allreduce([1]).tolist() == [size]


def test_r10_a_group_destroyed_while_threads_call(ranks):
    ranks(2, destroyed_by_another_thread)

"""The bits of a result depend on the ranks' inputs only, not on the size or the way of calling."""

import _oracle
import numpy as np


def ways(rank, size):
    import foldcast

    for name in ["float32", "bfloat16"]:
        pool = _oracle.pool(name, 70_000 + 100 * size)
        mine = pool[100 * rank :][:70_000]
        whole = foldcast.allreduce(mine)
        reference = _oracle.bits(whole)
        for count in [1, 2, 7, 100, 1025, 4096, 4097, 33_000, 65_536]:
            for begin in [0, 1, 4_000]:
                part = mine[begin : begin + count]
                got = foldcast.allreduce(part)
                assert np.array_equal(_oracle.bits(got), reference[begin : begin + count]), (name, count, begin)
        in_place = mine.copy()
        assert foldcast.allreduce(in_place, out=in_place) is in_place
        others = {
            "in place": in_place,
            "async": foldcast.allreduce_async(mine).wait(),
            "named": foldcast.allreduce(mine, name=f"named {name}"),
            "async named": foldcast.allreduce_async(mine, name=f"async {name}").wait(),
            "reshaped": foldcast.allreduce(mine.reshape(70, 1000)).reshape(-1),
            "unaligned": foldcast.allreduce(unaligned(mine)),
            "in place on one rank": foldcast.allreduce(mine.copy(), out=mine.copy() if rank else None),
            "strided": foldcast.allreduce(np.stack([mine, mine], 1)[:, 1]),
        }
        for way, got in others.items():
            assert np.array_equal(_oracle.bits(got), reference), f"rank {rank}: {name} {way}"


def unaligned(array):
    memory = np.empty(array.nbytes + 1, np.uint8)[1:]
    memory[:] = array.view(np.uint8)
    return memory.view(array.dtype)


def test_ways_of_calling_on_2_ranks(ranks):
    ranks(2, ways)


def test_ways_of_calling_on_5_ranks(ranks):
    ranks(5, ways)

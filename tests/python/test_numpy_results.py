"""Every dtype, reduction, size and number of ranks gives the oracle's bits, on every rank."""

import hashlib

import _oracle
import numpy as np

SMALL = [0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 255, 257, 511, 1000, 1025]
MIDDLE = [2047, 4096, 4097, 8191, 16385, 32769, 65537, 131075]
LARGE = (1 << 20) + 3
SHIFT = 61  # ranks take their inputs from one pool, this many elements apart: other values, other alignment


def cases(size):
    """(dtype, reduction, counts): the small counts, each middle one for some, the large one for few.

    With more than three ranks a third of the small ones each, so that what has them all is a dtype and reduction on some ranks.
    """
    number = 0
    for name in _oracle.DTYPES:
        for reduction in _oracle.REDUCTIONS:
            small = SMALL if size <= 3 else SMALL[(number + size) % 3 :: 3]
            counts = [*small, *MIDDLE[(number + size) % 4 :: 4]]
            if number % 12 == size:
                counts.append(LARGE)
            yield name, reduction, counts
            number += 1


def all_combinations(rank, size):
    import foldcast

    assert (foldcast.rank(), foldcast.size()) == (rank, size)
    digest = hashlib.sha256()
    for name, reduction, counts in cases(size):
        pool = _oracle.pool(name, max(counts) + SHIFT * size)
        for count in counts:
            inputs = [pool[SHIFT * r :][:count] for r in range(size)]
            before = inputs[rank].copy()
            out = np.full(count, 99, _oracle.dtype(name)) if count % 2 else None
            result = foldcast.allreduce(inputs[rank], reduction, out=out)
            where = f"rank {rank}: {name} {reduction} {count}"
            assert out is None or result is out, where
            assert type(result) is np.ndarray and result.dtype == before.dtype and result.shape == (count,), where
            assert np.array_equal(_oracle.bits(inputs[rank]), _oracle.bits(before)), f"{where}: the input was written"
            # The oracle looks at this rank's part; that the rest is right, the equal digests say.
            part = slice(count * rank // size, count * (rank + 1) // size)
            got, wanted = (
                _oracle.bits(result[part]),
                _oracle.bits(_oracle.allreduce([i[part] for i in inputs], reduction)),
            )
            wrong = np.flatnonzero(got != wanted)
            assert not wrong.size, (
                f"{where}: element {wrong[0]} of the part is {got[wrong[0]]:#x}, not {wanted[wrong[0]]:#x}"
            )
            digest.update(result.tobytes())
    return digest.hexdigest()


def check(ranks, size):
    job = ranks(size, all_combinations, timeout=300)
    assert len(set(job.results)) == 1, job.results


def test_1_rank(ranks):
    check(ranks, 1)


def test_2_ranks(ranks):
    check(ranks, 2)


def test_3_ranks(ranks):
    check(ranks, 3)


def test_4_ranks(ranks):
    check(ranks, 4)


def test_5_ranks(ranks):
    check(ranks, 5)


def test_6_ranks(ranks):
    check(ranks, 6)


def test_7_ranks(ranks):
    check(ranks, 7)


def test_8_ranks(ranks):
    check(ranks, 8)


def test_the_oracle_itself():
    a, b, c = np.array([1e8], "f4"), np.array([1.0], "f4"), np.array([-1e8], "f4")
    assert _oracle.allreduce([a, b, c], "sum") == np.float32(0)  # (a + b) + c in float32
    assert _oracle.allreduce([np.array([200], "u1"), np.array([100], "u1")], "sum") == 44
    signs = [np.array([0.0, -0.0], "f8"), np.array([-0.0, 0.0], "f8")]
    assert not np.signbit(_oracle.allreduce(signs, "max")).any()
    assert np.signbit(_oracle.allreduce(signs, "min")).all()
    nan = _oracle.allreduce([np.array([np.nan], "f2"), np.array([1], "f2")], "max")
    assert _oracle.bits(nan) == 0x7E00

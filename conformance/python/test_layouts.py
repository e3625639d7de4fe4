"""Arrays that do not lie in memory as they are written: right, or refused; never silently something else."""

import _oracle
import numpy as np


def views(array):
    """Views of a 6 x 8 array that are not contiguous, or not in C's order."""
    read_only = array[:, 1:5]
    read_only.flags.writeable = False
    return {
        "transposed": array.T,
        "every second": array.reshape(-1)[::2],
        "every second row": array[::2],
        "without the first column": array[:, 1:],
        "reversed": array[::-1],
        "reversed both ways": array[::-1, ::-1],
        "Fortran's order": np.asfortranarray(array),
        "one column": array[:, 3],
        "one row many times": np.broadcast_to(array[0], (4, 8)),
        "swapped axes": array.reshape(2, 3, 8).swapaxes(0, 2),
        "read only": read_only,
        "no elements": array[:, 8:],
        "no dimensions": array[2, 3].reshape(()),
    }


def every_view(rank, size):
    import foldcast

    for name in ["int8", "uint64", "bfloat16", "float32", "float64"]:
        whole = [_oracle.pool(name, 48, seed=5 + r).reshape(6, 8).copy() for r in range(size)]
        expected = {
            layout: _oracle.allreduce([views(array.copy())[layout] for array in whole], "sum")
            for layout in views(whole[0])
        }
        for layout, view in views(whole[rank]).items():
            before = view.copy()
            got = foldcast.allreduce(view)
            assert got.shape == view.shape and got.dtype == view.dtype, (name, layout)
            assert np.array_equal(_oracle.bits(got), _oracle.bits(expected[layout])), (name, layout)
            assert np.array_equal(_oracle.bits(view), _oracle.bits(before)), (name, layout, "was written")
            listed = foldcast.allreduce_fused([view, np.zeros(3, view.dtype)])[0]
            assert np.array_equal(_oracle.bits(listed), _oracle.bits(expected[layout])), (name, layout, "in a list")
            gathered = foldcast.allgather(np.atleast_1d(view))
            assert len(gathered) == size * len(np.atleast_1d(view)), (name, layout)
    # An output that is not contiguous must be written as a whole or be refused.
    out = np.zeros((6, 8), np.float32)
    for layout, view in views(out).items():
        if not view.flags.writeable or view.size == 0:
            continue
        out[...] = 0
        try:
            foldcast.allreduce(np.full(view.shape, 1.0, np.float32), out=view)
        except (TypeError, ValueError):
            assert np.all(out == 0), layout
        else:
            assert np.all(view == size), layout


def test_megatron_lm_5337_and_pytorch_192920_views_of_arrays(ranks):
    ranks(2, every_view)

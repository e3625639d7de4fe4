"""The gradient split strategy of a group: into which segments its ``fusion=1`` allreduces are gathered.

A strategy may be set before or after the job is joined and before or after its group is made; it is kept until the
group is destroyed. A second call of the same function for a group replaces what the first one set. A strategy by size
wins over one by index, in whichever order they were set. Every failure is a ValueError and changes nothing.

A strategy decides only what travels together: results have the same bits under any. It is read when TensorFlow compiles a
graph or function: what is compiled already stays as it is. It cuts the allreduces with ``fusion=1`` of the group that do not
depend on each other, in the order of their names, numbers in names by their value. One by index is for exactly as many
allreduces as its last index says: others are left unfused, with one warning that says both numbers.
"""

import math
import numbers

from hccl import _strategies
from hccl._checks import WORLD_GROUP, described, failures_are_value_errors, group_name, integer, items, refusal

__all__ = ["set_split_strategy_by_idx", "set_split_strategy_by_size"]

MAX_SEGMENTS = 8

# Percentages such as 96.54 are not exact in binary, and a script may compute its own.
_SUM_TOLERANCE = 1e-6


# The parameters' names are the interface: scripts pass them by keyword.
@failures_are_value_errors
def set_split_strategy_by_idx(idxList, group=WORLD_GROUP):
    """Segments by gradient index: `idxList` holds the index of each segment's last gradient, ascending, at most 8.

    With 160 gradients, ``[20, 100, 159]`` makes the segments 0 to 20, 21 to 100 and 101 to 159.
    """
    call = described("set_split_strategy_by_idx", group)
    name = group_name(call, group)
    indices = [integer(call, "idxList", index) for index in _segments(call, "idxList", idxList)]
    if indices[0] < 0:
        raise refusal(call, "idxList", "indices from 0", indices)
    if indices[-1] >= 1 << 63:
        raise refusal(call, "idxList", "indices of gradients", indices)
    if any(following <= index for index, following in zip(indices, indices[1:])):
        raise refusal(call, "idxList", "ascending indices, each once", indices)
    _strategies.set_by_index(name, indices)


@failures_are_value_errors
def set_split_strategy_by_size(dataSizeList, group=WORLD_GROUP):
    """Segments by data volume: `dataSizeList` holds each segment's share in percent, at most 8, together 100.

    ``[60, 20, 20]`` makes three segments; ``[96.54, 3.46]`` is what a group has that was told nothing.
    """
    call = described("set_split_strategy_by_size", group)
    name = group_name(call, group)
    shares = [_percentage(call, share) for share in _segments(call, "dataSizeList", dataSizeList)]
    total = math.fsum(shares)
    if abs(total - 100) > _SUM_TOLERANCE:
        raise refusal(call, "dataSizeList", "percentages that sum to 100", f"{shares}, which sum to {total:g}")
    _strategies.set_by_size(name, shares)


def _segments(call, argument, value):
    """`value` as a list of 1 to 8 entries, one a segment."""
    segments = items(call, argument, value)
    if not 1 <= len(segments) <= MAX_SEGMENTS:
        raise refusal(call, argument, f"1 to {MAX_SEGMENTS} segments", f"{len(segments)}: {segments}")
    return segments


def _percentage(call, value):
    """`value` as a share above 0 and up to 100; the comparison refuses NaN too."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value <= 100:
        raise refusal(call, "dataSizeList", "numbers above 0 and up to 100", repr(value))
    return value

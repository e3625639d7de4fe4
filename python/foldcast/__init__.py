"""Collective communication on ordinary hosts, with AllReduce at its centre.

Start N processes of a program with ``foldcast run -n N -- python program.py``; in each of them::

    import foldcast
    import numpy as np

    total = foldcast.allreduce(np.ones(3, np.float32) * foldcast.rank())

Every rank gets the same array, with the same bits.
"""

import atexit as _atexit

from foldcast._build import build_info
from foldcast._errors import (
    ClosedError,
    DeadlineError,
    FoldcastError,
    ForkedProcessError,
    GroupAbortedError,
    InvalidArgumentError,
    MismatchError,
    NotInGroupError,
    RankDiedError,
    ResourceError,
)
from foldcast._foldcast import (
    Group,
    Handle,
    __version__,
    _at_exit,
    abort,
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    allreduce_fused,
    allreduce_fused_async,
    barrier,
    broadcast,
    broadcast_async,
    empty,
    group,
    init,
    is_initialized,
    local_rank,
    local_size,
    new_group,
    product,
    products,
    rank,
    set_product,
    shrink,
    shutdown,
    size,
)

__all__ = [
    "ClosedError",
    "DeadlineError",
    "FoldcastError",
    "ForkedProcessError",
    "Group",
    "GroupAbortedError",
    "Handle",
    "InvalidArgumentError",
    "MismatchError",
    "NotInGroupError",
    "RankDiedError",
    "ResourceError",
    "__version__",
    "abort",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "allreduce_fused",
    "allreduce_fused_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "build_info",
    "empty",
    "group",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "new_group",
    "product",
    "products",
    "rank",
    "set_product",
    "shrink",
    "shutdown",
    "size",
]

_atexit.register(_at_exit)

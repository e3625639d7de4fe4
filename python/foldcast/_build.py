"""How this Foldcast was built, and what is in it."""

from __future__ import annotations

import os
from typing import Any, Dict

from foldcast import _foldcast

# The op library, beside this file.
TENSORFLOW_LIBRARY = "libfoldcast_tensorflow.so"


def build_info() -> Dict[str, Any]:
    """How this Foldcast was built and what is in it: for reports of defects. Needs no job and no TensorFlow.

    Returns
    -------
    dict
        ``version``; ``revision`` of the sources, None where the build was not told; ``target``, such as
        ``x86_64-linux-gnu``; ``profile``, ``release`` or ``debug``; ``kernels``, the instruction sets for which there are
        kernels, and ``kernels_in_use``, that in use on this machine; ``collectives``; ``algorithms`` for an allreduce;
        ``tensorflow_library``, the path of the op library for TensorFlow, None if it is not installed.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), TENSORFLOW_LIBRARY)
    return dict(_foldcast.build_info(), tensorflow_library=path if os.path.isfile(path) else None)

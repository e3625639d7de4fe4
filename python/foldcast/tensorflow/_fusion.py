"""Fusion of allreduces when TensorFlow compiles a graph: the switch, and what was fused."""

from __future__ import annotations

import glob
import os
import warnings
from typing import Any, Dict, List, Optional

from foldcast.tensorflow._library import FUSION_BY_NAME, FUSION_IS_THERE, LIBRARY, packages_path

_SWITCH = "FOLDCAST_TENSORFLOW_FUSION"


def fusion_report(clear: bool = False) -> List[Dict[str, Any]]:
    """What was fused in the graphs that TensorFlow has compiled in this process: one dict for each fused op.

    Parameters
    ----------
    clear
        Forget what is returned, so that the next report starts afresh.

    Returns
    -------
    list of dict
        In the order of compilation; the newest 10,000. The keys: ``group``, ``dtype`` (TensorFlow's name), ``fusion``,
        ``fusion_id`` (-1 with ``fusion=1``), ``members`` (the names of the nodes that became one, in their
        order), and ``bytes`` of all members together (0 if a shape is not known).

    Notes
    -----
    A graph that TensorFlow compiles twice is there twice: `Session.run` does so for each new set of fetches.
    """
    return LIBRARY.fusion_report(clear)


def enable() -> None:
    """Lets TensorFlow fuse, unless ``FOLDCAST_TENSORFLOW_FUSION=0`` forbids it or something stands against it."""
    value = os.environ.get(_SWITCH, "1")
    if value not in ("0", "1"):
        raise ImportError(f"{_SWITCH}: expected 0 or 1, got {value!r}")
    if value == "0":
        return
    other = _other_plugin()
    if other is not None:
        # TensorFlow ends a process in which two libraries register a graph plugin for CPUs.
        warnings.warn(
            f"foldcast: {other} may bring a graph optimiser of its own for CPUs, and TensorFlow allows only one: "
            f"allreduces are not fused. Set {_SWITCH}=0 to silence this",
            stacklevel=2,
        )
        return
    answer = LIBRARY.enable_fusion()
    if answer == FUSION_BY_NAME:
        from foldcast.tensorflow import _fusion_1

        _fusion_1.ask_for_fusion()
    elif answer != FUSION_IS_THERE:
        warnings.warn(
            f"foldcast: the graph optimiser of this TensorFlow cannot be extended: allreduces are not fused. "
            f"Set {_SWITCH}=0 to silence this",
            stacklevel=2,
        )


def _other_plugin() -> Optional[str]:
    """The path of a plugin that TensorFlow loads by itself, if there is one with a graph optimiser."""
    directory = os.path.join(packages_path(), "tensorflow-plugins")
    for path in sorted(glob.glob(os.path.join(directory, "*.so"))):
        with open(path, "rb") as file:
            if b"TF_InitGraph" in file.read():
                return path
    return None

"""Fusion on TensorFlow 1.15, which calls an added graph optimiser only where a configuration names it.

TensorFlow has no place for a configuration of all sessions, so each session's is extended when it is made, and the one
that functions run with. A session made before this module was imported runs its allreduces one by one.
"""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session
from tensorflow.python.eager import context

# The op library registers the optimiser under this name.
_NAME = "FoldcastFusion"


def ask_for_fusion() -> None:
    """Names the optimiser in all configurations from now on. A second call changes nothing."""
    if getattr(session.BaseSession, "_foldcast_asks", False):
        return
    session.BaseSession._foldcast_asks = True
    session.BaseSession.__init__ = _asking(session.BaseSession.__init__)

    made = context.Context.config.fget
    context.Context.config = property(lambda self: _named(made(self)))
    # Made from the configuration as it was, and kept: TensorFlow makes it anew.
    context.context().function_call_options = None


def _asking(initialise: Any) -> Any:
    @functools.wraps(initialise)
    def initialise_asking(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        # Without one, it is the context's, which has the name; TensorFlow itself refuses what is none.
        if isinstance(config, config_pb2.ConfigProto):
            own = config_pb2.ConfigProto()
            own.CopyFrom(config)
            config = _named(own)
        initialise(self, target, graph, config)

    return initialise_asking


def _named(config: Any) -> Any:
    optimizers = config.graph_options.rewrite_options.custom_optimizers
    if all(optimizer.name != _NAME for optimizer in optimizers):
        optimizers.add().name = _NAME
    return config

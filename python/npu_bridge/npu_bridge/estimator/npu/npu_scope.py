"""Scopes by which scripts tell a device's compiler how to treat the ops inside; on a host they change nothing."""

import contextlib

__all__ = ["without_npu_compile_scope"]


@contextlib.contextmanager
def without_npu_compile_scope():
    """Ops that are not to run on the device: on a host, none do."""
    yield

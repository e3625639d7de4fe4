"""The slower ways from what a caller gave to an array. The usual ones are in the compiled module."""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import numpy as np

_EXPECTED = "one array, or what numpy.asarray or numpy.from_dlpack makes one of"
_MAX_OVERLAP_WORK = 10_000
_MAX_DEPTH = 64


def as_array(value: Any) -> Union[np.ndarray, Tuple[str, str]]:
    """The array, or what was expected and what came."""
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            return "an array without a mask", "a numpy.ma.MaskedArray"
        return value
    if isinstance(value, (list, tuple)):
        found = _array_inside(value, _MAX_DEPTH)
        if found is not None:
            kind = type(value).__name__
            return "one array (stack or concatenate them, or call once for each)", f"a {kind} with a {found} in it"
    failures = []
    for convert in (np.asarray, getattr(np, "from_dlpack", None)):
        if convert is None or (convert is not np.asarray and not hasattr(value, "__dlpack__")):
            continue
        try:
            array = convert(value)
        except Exception as error:  # whatever a foreign object raises is a reason to refuse it
            failures.append(str(error))
            continue
        if array.dtype != object or isinstance(value, np.generic):
            return array
        failures.append("numpy.asarray makes an array of Python objects of it")
    return _EXPECTED, f"{_name(value)}: {'; '.join(failures)}"


def _array_inside(value: Any, depth: int) -> Optional[str]:
    for item in value:
        if isinstance(item, (list, tuple)):
            found = _array_inside(item, depth - 1) if depth else None
            if found is not None:
                return found
        elif not isinstance(item, np.generic) and (hasattr(item, "__array__") or hasattr(item, "__dlpack__")):
            return _name(item)
    return None


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def overlaps(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether the arrays share memory; what is too hard to tell counts as sharing."""
    if not np.may_share_memory(one, other):
        return False
    try:
        return np.shares_memory(one, other, max_work=_MAX_OVERLAP_WORK)
    except Exception:  # numpy's TooHardError lives at different places in different versions
        return True

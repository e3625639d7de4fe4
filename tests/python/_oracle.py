"""What an allreduce must give, bit for bit, by numpy: the canonical tree over the ranks (ARCHITECTURE.md)."""

import numpy as np

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
DTYPES = INTEGERS + FLOATS
REDUCTIONS = ["sum", "max", "min", "prod"]
QUIET_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}


def dtype(name):
    """The numpy dtype of a name, bfloat16 included."""
    if name == "bfloat16":
        try:
            from ml_dtypes import bfloat16
        except ImportError:  # an old TensorFlow has a type of its own
            import tensorflow as tf

            bfloat16 = tf.bfloat16.as_numpy_dtype
        return np.dtype(bfloat16)
    return np.dtype(name)


def bits(array):
    """The elements as unsigned integers: equal bits, not equal values."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def pool(name, count, seed=7):
    """Random elements, among them the awkward ones: a rank's input is a part of it."""
    random = np.random.default_rng(seed)
    kind = dtype(name)
    if name in INTEGERS:
        return np.frombuffer(random.bytes(count * kind.itemsize), kind)
    values = (random.standard_normal(count) * 4).astype(kind)
    awkward = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 6e-8, -5e-324], np.float64).astype(kind)
    places = random.choice(count, count // 16, replace=False)
    values[places] = random.choice(awkward, len(places))
    return values


def allreduce(inputs, reduction):
    """Folds one array per rank, in the order that holds for every size, chunk and way of calling."""
    kind = inputs[0].dtype
    half = kind.itemsize == 2 and kind.name in FLOATS
    values = [array.astype(np.float32) if half else array for array in inputs]
    with np.errstate(all="ignore"):
        distance = 1
        while distance < len(values):
            for left in range(0, len(values) - distance, 2 * distance):
                values[left] = _fold(values[left], values[left + distance], reduction)
            distance *= 2
        result = values[0].astype(kind)
    if kind.name in FLOATS:
        result = result.copy()
        bits(result)[np.isnan(result)] = QUIET_NAN[kind.name]
    return result


def _fold(a, b, reduction):
    if reduction == "sum":
        return np.add(a, b)
    if reduction == "prod":
        return np.multiply(a, b)
    choose, rank_signs = (np.maximum, np.logical_and) if reduction == "max" else (np.minimum, np.logical_or)
    chosen = choose(a, b)
    if a.dtype.kind == "f":
        zeros = (a == 0) & (b == 0)
        negative = rank_signs(np.signbit(a), np.signbit(b))
        chosen = np.where(zeros, np.where(negative, -0.0, 0.0).astype(a.dtype), chosen)
    return chosen

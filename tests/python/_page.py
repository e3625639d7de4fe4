"""What the documentation of allreduce says about products, written down once more, for the tests to compare with."""

PAGE = {
    "host": {
        "dtypes": "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64",
        "reductions": "sum max min prod",
    },
    "atlas-350": {
        "dtypes": "int8 int16 int32 int64 uint64 float16 float32 float64 bfloat16",
        "one host": "int64 uint64 float64",
        "reductions": "sum max min",
    },
    "atlas-a3": {
        "dtypes": "int8 int16 int32 int64 float16 float32 bfloat16",
        "reductions": "sum max min prod",
        "not": {"prod": "int16 bfloat16"},
    },
    "atlas-a2": {
        "dtypes": "int8 int16 int32 int64 float16 float32 bfloat16",
        "reductions": "sum max min prod",
        "not": {"prod": "int16 bfloat16"},
    },
    "atlas-200i-500-a2": {},
    "atlas-300i-duo": {
        "dtypes": "int8 int16 int32 float16 float32",
        "reductions": "sum max min prod",
        "not": {"max": "int16", "min": "int16", "prod": "int16"},
    },
    "atlas-inference": {},
    "atlas-training": {"dtypes": "int8 int32 int64 float16 float32", "reductions": "sum max min prod"},
}


def words(product, key):
    return PAGE[product].get(key, "").split()


def takes(product, dtype, reduction):
    """Whether the product's allreduce takes this, inside one host."""
    excepted = PAGE[product].get("not", {}).get(reduction, "").split()
    return dtype in words(product, "dtypes") and reduction in words(product, "reductions") and dtype not in excepted


def takers(dtype, reduction):
    """The products that take this."""
    return [product for product in PAGE if takes(product, dtype, reduction)]

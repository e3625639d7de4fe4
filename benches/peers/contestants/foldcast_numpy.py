"""Foldcast, called from Python with numpy arrays."""

import foldcast
import method
import numpy as np

DTYPES = {"f32": np.float32, "i32": np.int32}


class Case(method.Made):
    def __init__(self, size, dtype, op, mode):
        self.source = method.pattern(size // 4, foldcast.rank()).astype(DTYPES[dtype])
        self.output = np.empty_like(self.source)
        self.input = self.output if mode == "in" else self.source.copy()
        self.op = op

    def call(self):
        foldcast.allreduce(self.input, self.op, out=self.output)

    def rewrite(self):
        self.input[:] = self.source

    def result(self):
        return self.output

    def prepare(self):
        if self.input is self.output:
            self.output[:] = 0


class Foldcast(method.Contestant):
    rank, size = foldcast.rank(), foldcast.size()

    def make(self, size, dtype, op, mode):
        return Case(size, dtype, op, mode) if dtype in DTYPES else None

    def barrier(self):
        foldcast.barrier()

    def largest(self, value):
        return float(foldcast.allreduce(np.array([value]), "max")[0])


method.measure_all(Foldcast())

"""PyTorch's torch.distributed with Gloo, which reduces in place only."""

import method
import torch
import torch.distributed as dist

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32}


class Case(method.Made):
    def __init__(self, size, dtype, op):
        dtype = DTYPES[dtype]
        self.source = torch.from_numpy(method.pattern(size // dtype.itemsize, dist.get_rank())).to(dtype)
        self.tensor = self.source.clone()
        self.op = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX

    def call(self):
        dist.all_reduce(self.tensor, op=self.op)

    def rewrite(self):
        self.tensor.copy_(self.source)

    def result(self):
        return self.tensor.to(torch.int64).numpy()

    def prepare(self):
        self.tensor.zero_()


class Gloo(method.Contestant):
    def __init__(self):
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def make(self, size, dtype, op, mode):
        return Case(size, dtype, op) if mode == "in" else None

    def barrier(self):
        dist.barrier()

    def largest(self, value):
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.item()


print("# torch", torch.__version__, flush=True)
method.measure_all(Gloo())
dist.barrier()

"""The sub-package from which scripts import `npu_ops`, `npu_unary_ops` and what is in `npu`."""

"""The sub-package from which scripts import `npu_scope`."""

"""Gradient split strategies: see `hccl.split.api`."""

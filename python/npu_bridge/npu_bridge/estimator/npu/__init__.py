"""The sub-package of optimizers, hooks, callbacks, configurations and Estimators."""

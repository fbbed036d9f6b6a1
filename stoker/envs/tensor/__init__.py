"""Environments as tensor programs: see `types.TensorEnv`."""

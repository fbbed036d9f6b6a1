"""Algorithms: tensors in, tensors out."""

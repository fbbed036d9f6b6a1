"""Kernels: what a GPU does better in one piece, each with a twin in plain torch."""

"""Sweeps: many trials of settings, each judged by the reward that it comes to."""

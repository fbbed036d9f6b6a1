"""Measurement: a library; screens read it."""

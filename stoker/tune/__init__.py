"""Measured probes, what they predict, and the search for settings that are quicker."""

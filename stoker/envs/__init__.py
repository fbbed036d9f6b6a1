"""Environments: what ships, and how a name becomes one. No torch in this room."""

"""Pools: N environments that step when told to, wherever they run. No torch in this room."""

"""Measurements: `python -m bench NAME` prints JSON lines; `--save` keeps them in bench/results."""

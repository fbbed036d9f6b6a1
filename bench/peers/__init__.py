"""Trainers to compare with, one a file, each run in a process of its own.

`python -m bench.peers.skrl --envs 2048 --steps 32 --arch 64,64 --iterations 50` prints a JSON line.
`ours` is Stoker, run the same way.
"""

"""The on-disk format of a run: its folder, checkpoints, metrics, lineage, and how to read them.

Nothing is imported here, so that `stoker.runs.reader` works without torch.
"""

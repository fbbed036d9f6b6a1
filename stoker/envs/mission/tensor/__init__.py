"""Missions as a tensor program, n of them at once.

Each file has the name of the one above that it writes for tensors, and does the same in the same
order, with n missions as the first axis. Under the same uniforms both come to the same states, to
the bit where no compiler fuses a product and a sum.
"""

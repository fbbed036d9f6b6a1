"""Mission: a fleet captures a zone that scripted defenders guard. docs/mission.md has the rules.

The rules are pure functions of (rules, state, action, random numbers) over arrays of fixed shape,
so that the same game can be written for tensors, which `tensor` does. `env.py` wraps them for
Gymnasium.
"""

"""Learning: rollouts in, better weights out."""

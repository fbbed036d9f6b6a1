"""Collection: environments and policy in, rollouts out."""

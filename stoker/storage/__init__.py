"""Storage: what the learner learns from, resident on its device."""

"""Jobs: several runs on one GPU, each with its own cores. No torch in this room."""

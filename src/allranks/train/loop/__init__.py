"""One ``fit``: the training loop, its checkpoints, validation and preemption."""

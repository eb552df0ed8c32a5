"""Training: mesh, state, step, checkpoints, loop."""

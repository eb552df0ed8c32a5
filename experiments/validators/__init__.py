"""Checks of theorems on a user's own model, for `experiments.validate`."""

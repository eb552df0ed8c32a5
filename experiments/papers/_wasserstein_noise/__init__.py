"""Parts of the experiment on distances of noisy images."""

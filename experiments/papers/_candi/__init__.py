"""The parts of CANDI's experiment; `experiments/papers/candi.py` joins them."""

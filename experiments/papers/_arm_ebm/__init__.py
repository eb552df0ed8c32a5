"""Parts of the ARM-EBM experiment; `experiments/papers/arm_ebm.py` joins them."""

"""Attention of every position to every position."""

from pallas_kernels.attention.op import attention as attention

"""Attention of every position to every position, with rotary positions."""

from pallas_kernels.attention.op import attention as attention

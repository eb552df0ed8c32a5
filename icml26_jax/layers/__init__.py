"""Layers of networks: attention, normalisation, modulation, rotary positions."""

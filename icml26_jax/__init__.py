"""Methods of ICML 2026 papers as one JAX library.

Mathematics (pure functions over arrays and pytrees): `diffusion`, `layers`,
`models`, `objectives`, `decoding`, `evaluation`. What touches the outside:
`data`, `pretrained`, `training`, `report`.
"""

"""Weights that exist, read into our trees of parameters.

`checkpoint.load` takes a name, a GGUF file or a Hugging Face directory;
`python -m icml26_jax.pretrained.fetch NAME` obtains what a name stands for.
"""

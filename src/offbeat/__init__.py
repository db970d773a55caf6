"""Offbeat: data-parallel training of PyTorch models whose workers do not wait for each other."""

"""Scaling studies: the same training at several sizes, and how its speed grows."""

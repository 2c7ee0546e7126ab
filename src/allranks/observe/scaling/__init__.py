"""Scaling studies: the same training on more and more processes, and what becomes of the speed."""

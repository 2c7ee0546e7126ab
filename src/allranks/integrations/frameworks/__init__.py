"""Frameworks: which are in a Python, what they lack, and Horovod built for it."""

"""Checkpoints that are never torn: step folders of safetensors files with a manifest.

``manifest``, ``saved``, ``store``, ``verify`` and ``find`` need no torch, so that a login node can list and
check them; ``shards``, ``plan``, ``saver``, ``reader``, ``dcp`` and ``export`` do. No function here talks to
another rank: what ranks must agree on is agreed by those who call.
"""

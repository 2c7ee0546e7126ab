"""One file per family of launchers. Each reads its own variables and ignores the others.

A source is ``read(env) -> DetectedRank | None``: None when its launcher did not start this process.
`allranks.runtime.world.detection` holds the order and the comparison.
"""

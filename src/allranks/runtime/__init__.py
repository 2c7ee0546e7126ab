"""What runs on a compute node: world detection, the agent, preemption, telemetry. Standard library only."""

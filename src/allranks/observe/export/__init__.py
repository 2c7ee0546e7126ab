"""A run's numbers for other programs: Prometheus, Grafana, TensorBoard."""

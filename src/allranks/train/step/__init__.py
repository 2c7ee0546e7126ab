"""From a batch to an optimizer step: objective, step functions, metrics, compilation."""

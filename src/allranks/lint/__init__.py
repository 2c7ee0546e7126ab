"""Lint: reads any job script, says what will go wrong and why, and applies safe fixes."""

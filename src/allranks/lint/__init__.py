"""Lint: reads any job script, says what will go wrong and why, and mends what is safe to mend."""

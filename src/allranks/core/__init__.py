"""Shared basics: units, formatting, shell quoting, redaction, JSON, SVG plots. Imports only errors."""

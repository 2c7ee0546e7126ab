"""A shell script as words and statements, whatever its author did to it."""

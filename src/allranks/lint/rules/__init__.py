"""The rules, one file each; ``lint/rule.py`` says what a file holds."""

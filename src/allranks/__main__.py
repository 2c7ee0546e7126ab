"""``python -m allranks`` is the command."""

from allranks.cli import main

main()

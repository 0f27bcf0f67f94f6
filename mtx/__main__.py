"""`python -m mtx` is the `mtx` command."""

from mtx.cli import main

main()

"""`python -m flyweight`."""

from flyweight.cli import main

main()

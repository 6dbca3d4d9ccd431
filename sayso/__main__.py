"""`python -m sayso`: the command `sayso`."""

from sayso.config.cli import main

if __name__ == "__main__":
    main()

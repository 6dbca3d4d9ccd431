"""`python -m sayso`: the command `sayso`."""

from sayso.config.cli.main import main

if __name__ == "__main__":
    main()

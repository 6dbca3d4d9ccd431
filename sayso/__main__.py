"""`python -m sayso`: the command `sayso`."""

from sayso.ops.cli.main import main

if __name__ == "__main__":
    main()

"""`python -m stoker` is the `stoker` command."""

from stoker.cli.main import main

if __name__ == "__main__":
    main()

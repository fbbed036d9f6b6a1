"""`python -m stoker` is the `stoker` command."""

from stoker.cli.main import run

if __name__ == "__main__":
    run()

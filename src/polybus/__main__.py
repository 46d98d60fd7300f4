"""`python -m polybus` is `polybus`."""

from polybus.cli.main import main

if __name__ == "__main__":
    main()

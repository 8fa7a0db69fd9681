"""`python -m gateway` is `parley`."""

from gateway.cli.main import main

if __name__ == "__main__":
    main()

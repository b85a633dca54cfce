"""`python -m meruit`."""

from meruit.cli import main

if __name__ == "__main__":
    main()

"""``python -m dpaudit`` is ``dpaudit``."""

from .cli import main

if __name__ == "__main__":
    main()

"""`dpaudit init`: a commented spec to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import say


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("audit.toml"),
) -> None:
    """Write a commented spec to start from, with a seed of its own."""
    import secrets

    from ..errors import InputError
    from ..spec import bundled_text

    text = bundled_text("template").replace("{seed}", str(secrets.randbelow(10**9)))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"the file to write must not exist yet, got {path}") from None
    except OSError as error:
        raise InputError(f"the file to write must be in a folder that can be written to, got {path}: {error}") from None
    say(f"wrote {path}; next: dpaudit run {path}")

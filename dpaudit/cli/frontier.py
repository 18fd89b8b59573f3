"""`dpaudit frontier`: accuracy against ε over a grid of noise and clip norms."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import progress_bar, say, say_aside, say_json


def frontier(
    spec: Annotated[
        str,
        typer.Argument(help="A TOML file, or one that ships with dpaudit: digits, fashion-mnist, fashion-mnist-cnn."),
    ] = "digits",
    epsilon: Annotated[
        str | None, typer.Option(help="Target ε, to which noise is calibrated, as 0.5,1,3 [default: 0.5,1,2,4,8].")
    ] = None,
    noise: Annotated[str | None, typer.Option(help="Noise multipliers instead of target ε, as 0.5,1,2,4.")] = None,
    clip: Annotated[str | None, typer.Option(help="Clip norms [default: 0.1,0.3,1,3].")] = None,
    repeats: Annotated[int | None, typer.Option(help="Trainings per point, at least 2 [default: 5].")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ of every ε [default: the spec's].")] = None,
    within: Annotated[
        float | None,
        typer.Option(help="Suggest the least ε whose accuracy is at most this below the best [default: 0.01]."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Also suggest the best accuracy at an ε of at most this.")
    ] = None,
    trainer: Annotated[str | None, typer.Option(help="The spec's DP-SGD trainer [default: its first].")] = None,
    reference: Annotated[
        bool, typer.Option("--reference/--no-reference", help="Also train without privacy, for comparison.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results [default: reports/runs/NAME-frontier].")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run left in the folder.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Use this seed in place of the spec's.")] = None,
    workers: Annotated[int | None, typer.Option(help="Stacks trained side by side; the result is the same.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Where the data set's files are.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print frontier.json to stdout.")] = False,
) -> None:
    """Train over a grid of noise and clip norms, draw accuracy against ε, and suggest a point with its tuning cost."""
    from ..frontier import document, explore, render_text
    from ..spec import load_spec

    content = load_spec(spec)
    if seed is not None:
        content = content.model_copy(update={"seed": seed})
    if data_folder is not None:
        content = content.model_copy(update={"data": content.data.model_copy(update={"folder": str(data_folder)})})
    folder = Path("reports/runs") / f"{content.name}-frontier" if out is None else out
    lists: dict[str, Any] = {"epsilon": epsilon, "noise": noise, "clip": clip}
    single = {"repeats": repeats, "delta": delta, "within": within, "budget": budget, "trainer": trainer}
    given = {name: value for name, value in {**lists, **single}.items() if value is not None}
    options: dict[str, Any] = {name: _numbers(name, value) if name in lists else value for name, value in given.items()}
    if workers is not None:
        options["workers"] = workers
    with progress_bar(content.name) as progress:
        found = explore(
            content, folder, **options, reference=reference, fresh=fresh, progress=progress,
            command=_command(spec, given, reference, seed),
        )  # fmt: skip
    if json:
        say_json(document(found))
    else:
        say(render_text(found).rstrip())
    say_aside(f"page: {folder / 'release' / 'frontier.html'}")


def _numbers(name: str, text: str) -> list[float]:
    """The numbers of ``1,2,3``."""
    from ..errors import InputError

    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"{name} must be numbers with commas between them, got {text!r}") from None


def _command(spec: str, given: dict[str, object], reference: bool, seed: int | None) -> str:
    """What repeats this, without the seed: reports name none."""
    options = [f"--{name} {shlex.quote(str(value))}" for name, value in given.items()]
    plain = [] if reference else ["--no-reference"]
    other = " with another seed than the spec's" if seed is not None else ""
    return " ".join(["dpaudit frontier", shlex.quote(spec), *options, *plain]) + other

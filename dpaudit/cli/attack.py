"""`dpaudit attack`: membership inference on arrays or on a model, and a data set's most exposed records."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import progress_bar, say, say_aside, say_json

if TYPE_CHECKING:
    from ..inference import Source

_UNPICKLE_HELP = (
    "Allow --model FILE to be a pickle (.pkl, .joblib, .pt). Loading a pickle RUNS ANY CODE that is in it, with your "
    "rights: only for files of people you trust."
)


def attack(
    source: Annotated[
        str,
        typer.Argument(help="CSV, NPZ, safetensors or Parquet; with --vulnerable also digits or fashion-mnist."),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="Ask this model about the source's x: FILE.skops, or package.module:function (x to outputs)."
        ),
    ] = None,
    shadows: Annotated[
        Path | None, typer.Option(help="File with the outputs of shadow models and their member.")
    ] = None,
    population: Annotated[
        Path | None, typer.Option(help="File with outputs on records that no model was trained on.")
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="Only this attack; may be repeated [default: all that there is enough for]."),
    ] = None,
    prior: Annotated[
        float | None, typer.Option(help="Share of members among those asked about, for the PPV [default: 0.1].")
    ] = None,
    slice: Annotated[
        list[str] | None, typer.Option(help="Also slice by this column: label or your own; may be repeated.")
    ] = None,
    significance: Annotated[
        float | None, typer.Option(help="Probability of any finding where there is nothing [default: 0.05].")
    ] = None,
    trust: Annotated[
        list[str] | None, typer.Option(help="A type in the skops file that may be made; may be repeated.")
    ] = None,
    unpickle: Annotated[bool, typer.Option("--unpickle", help=_UNPICKLE_HELP)] = False,
    vulnerable: Annotated[
        bool, typer.Option("--vulnerable", help="Find a data set's own most exposed records; trains many models.")
    ] = False,
    shortlist: Annotated[int | None, typer.Option(help="With --vulnerable: so many records are confirmed.")] = None,
    models: Annotated[int | None, typer.Option(help="With --vulnerable: trainings per level of privacy.")] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="With --vulnerable: a level of privacy; may be repeated.")
    ] = None,
    records: Annotated[int | None, typer.Option(help="With --vulnerable: so many records of the data set.")] = None,
    workers: Annotated[int | None, typer.Option(help="With --vulnerable: trained side by side.")] = None,
    data_folder: Annotated[str | None, typer.Option(help="With --vulnerable: where the data set's files are.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="All randomness comes from it [default: 1].")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results [default: reports/runs/NAME-attack].")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run left in the folder.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print report.json to stdout.")] = False,
) -> int:
    """Attack a model whose members are known: every attack the evidence allows, each beside what luck would show."""
    arrays = {
        "model": model, "shadows": shadows, "population": population, "attack": attack, "prior": prior, "slice": slice,
        "significance": significance, "trust": trust, "unpickle": unpickle or None,
    }  # fmt: skip
    training = {
        "shortlist": shortlist, "models": models, "epsilon": epsilon, "records": records, "workers": workers,
        "data_folder": data_folder,
    }  # fmt: skip
    _refuse("--vulnerable, which trains models of its own" if vulnerable else "a source without --vulnerable",
            arrays if vulnerable else training)  # fmt: skip
    if vulnerable:
        return _vulnerable(source, training, seed, out, fresh, json)
    return _attack(source, arrays, seed, out, fresh, json)


def _refuse(where: str, options: dict[str, Any]) -> None:
    """Options of the other kind of run are mistakes, not noise."""
    from ..errors import InputError

    given = [name for name, value in options.items() if value is not None and value != []]
    if given:
        raise InputError(f"--{given[0].replace('_', '-')} must not be given with {where}")


def _vulnerable(
    source: str, options: dict[str, Any], seed: int | None, out: Path | None, fresh: bool, as_json: bool
) -> int:
    from . import vulnerable

    named = {"epsilon": "epsilons"}
    given = {named.get(k, k): v for k, v in options.items() if v is not None}
    if "epsilons" in given:
        given["epsilons"] = tuple(given["epsilons"])
    if seed is not None:
        given["seed"] = seed
    return vulnerable.vulnerable(source, **given, out=out, fresh=fresh, as_json=as_json)


def _attack(
    source: str, options: dict[str, Any], seed: int | None, out: Path | None, fresh: bool, as_json: bool
) -> int:
    from ..inference import document, infer, render_text, write
    from ..inference.planning import plan
    from ..store import RunFolder

    folder = RunFolder(Path("reports/runs") / f"{Path(source).stem}-attack" if out is None else out)
    folder.require_free()
    held = _read(source, options)
    chosen = {"attacks": options["attack"], "prior": options["prior"], "significance": options["significance"]}
    given = {name: value for name, value in chosen.items() if value is not None}
    given["seed"] = 1 if seed is None else seed
    planned = plan(held, given)
    folder.admit(planned, fresh)
    with progress_bar(held.name) as progress:
        found = infer(held, **given, command=_command(source, options, seed), progress=progress)
    with folder.locked():
        if fresh:
            folder.clear()
        folder.begin(planned)
        write(found, folder.path)
    if as_json:
        say_json(document(found))
    else:
        say(render_text(found).rstrip())
    say_aside(f"report: {folder.release / 'report.html'}")
    return 0


def _read(source: str, options: dict[str, Any]) -> Source:
    """The evidence, with the model's answers where one is asked."""
    import sys
    from contextlib import redirect_stdout
    from dataclasses import replace

    from ..errors import InputError
    from ..inference import read_source
    from ..inference.models import ask, load_model

    files = {"shadows": options["shadows"], "population": options["population"], "slices": options["slice"] or ()}
    model = options["model"]
    if model is None:
        for name in ("trust", "unpickle"):
            if options[name]:
                raise InputError(f"--{name} must come with --model, got none")
        return read_source(source, **files)
    with redirect_stdout(sys.stderr):  # what a model prints is no part of the report
        loaded = load_model(model, trust=options["trust"] or (), unpickle=bool(options["unpickle"]))
    asked = read_source(source, features_only=True)
    if asked.x is None:
        raise InputError(f"{source} must hold x (columns x_0, x_1, ... in CSV) to ask a model about")
    with redirect_stdout(sys.stderr):
        answers = ask(loaded, asked.x, asked.labels, model)
    held = read_source(source, **files, outputs=answers.arrays)
    return replace(held, notes=(*held.notes, f"The model was asked for {answers.note}."))


def _command(source: str, options: dict[str, Any], seed: int | None) -> str:
    """What repeats this: names of files without their folders, and no seed."""
    parts = ["dpaudit attack", shlex.quote(Path(source).name)]
    for name, value in options.items():
        if value is True:
            parts.append(f"--{name}")
            continue
        for one in value if isinstance(value, list) else [value] if value is not None else []:
            text = str(one)
            shown = (
                Path(text).name if name in ("shadows", "population") or (name == "model" and ":" not in text) else text
            )
            parts.append(f"--{name} {shlex.quote(shown)}")
    other = " with another seed than 1" if seed not in (None, 1) else ""
    return " ".join(parts) + other

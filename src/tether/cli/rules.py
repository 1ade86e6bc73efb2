"""``tether rules``: every choice an algorithm has, from the registry itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tether.config.recipe import Recipe


@click.command("rules")
@click.argument("name", required=False)
@click.option("--check", "recipe", metavar="RECIPE", help="Print what the factors of a recipe read and multiply to.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="With --check: change one key; repeatable.")
def command(name: str | None, recipe: str | None, settings: tuple[str, ...]) -> None:
    """List rules, presets and the other choices by kind; with a NAME, explain one."""
    if settings and recipe is None:
        raise click.UsageError("--set changes the recipe of --check; give one")
    if recipe is not None:
        if name is not None:
            raise click.UsageError("give a NAME to explain or a recipe to --check, not both")
        from tether.config.recipe import load

        _print_check(load(recipe, settings))
    elif name is None:
        _print_all()
    else:
        _print_one(name)


def _print_all() -> None:
    from rich.console import Console
    from rich.table import Table

    from tether.config.presets import PRESETS
    from tether.registry import ALGORITHM_KINDS

    for registry in ALGORITHM_KINDS:
        click.echo(registry.plural)
        names = registry.names()
        for name in names:
            click.echo(f"  {name.ljust(max(map(len, names)))}  {registry.summary(name).replace('``', '')}")
    click.echo("presets")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("  name", "denominator", "level", "rule", "and", "measured over"):
        table.add_column(title, no_wrap=True)
    for name, preset in PRESETS.items():
        denominator, rule = preset["proximal"]["name"], preset["rule"]["name"]
        mark = " *" if _waits(name) else ""
        table.add_row(
            f"  {name}{mark}", denominator, preset["level"], rule, ", ".join(_beside(preset)), preset["measure"]
        )
    Console(width=120, highlight=False).print(table)
    click.echo("* needs another table, a number of yours, or what no part of a run provides yet: see tether rules NAME")
    click.echo("tether rules NAME explains one; tether rules --check RECIPE shows what a recipe multiplies to")


def _waits(name: str) -> str:
    """Why a preset cannot run as it is; empty if it can."""
    from tether.config.recipe import from_tables
    from tether.errors import ConfigError

    try:
        from_tables({"algorithm": {"preset": name}})
    except ConfigError as error:
        return str(error)
    return ""


def _beside(preset: dict[str, Any]) -> list[str]:
    """What a preset has beside its rule."""
    parts = [*preset.get("corrections", ()), *(preset[key] for key in ("step_size", "kl") if key in preset)]
    scale = preset["rule"].get("scale")
    return [part["name"] for part in ([scale] if scale else []) + parts + preset.get("replay", [])]


def _print_check(recipe: Recipe) -> None:
    """Which edge each factor reads, the product, what is measured, and what is doubtful."""
    from tether.config.review import doubts_of
    from tether.core.composition import factors_of, product_of, shown
    from tether.core.ratio import ENDS
    from tether.registry import KL_PENALTIES, PROXIMALS, REPLAYS, STEP_SIZES

    algorithm = recipe.algorithm
    factors = factors_of(algorithm.level, algorithm.rule, algorithm.corrections)
    stands_for = algorithm.proximal.stands_for
    click.echo(f"recipe {recipe.name}: {recipe.algorithm_label}")
    click.echo(f"  denominator  {PROXIMALS.name_of(algorithm.proximal)}, which stands for {stands_for}")
    for kind, factor in zip(["rule", *["mask" if f.is_mask else "weight" for f in factors[1:]]], factors, strict=True):
        above, below = (stands_for if end == "proximal" else end for end in ENDS[factor.edge])
        click.echo(f"  {kind.ljust(11)}  {factor.name} reads {factor.edge} = {above} / {below}, by {factor.level}")
    click.echo(f"  product      {shown(product_of(algorithm.proximal, factors))}")
    needs = dict.fromkeys(str(need) for traits in algorithm.traits for need in traits.needs)
    click.echo(f"  statistics   {_listed(needs, algorithm.measure)}")
    if algorithm.kl is not None:
        click.echo(
            f"  KL penalty   {KL_PENALTIES.name_of(algorithm.kl)}, {algorithm.kl.coefficient:g} of pi / reference"
        )
    if algorithm.step_size is not None:
        measured = map(str, algorithm.step_size.traits.needs)
        click.echo(f"  step size    {STEP_SIZES.name_of(algorithm.step_size)}: {', '.join(measured)} over the step")
    if algorithm.replay:
        click.echo(f"  replay       {', '.join(REPLAYS.name_of(replay) for replay in algorithm.replay)}")
    for doubt in doubts_of(recipe):
        click.echo(f"  doubtful: {doubt}")


def _listed(needs: Iterable[str], scope: str) -> str:
    return f"{', '.join(needs)} over the {scope}" if needs else "none"


def _print_one(name: str) -> None:
    from difflib import get_close_matches

    from tether.cli.console import toml_of
    from tether.config.presets import PRESETS, summary
    from tether.errors import UnknownNameError
    from tether.registry import ALGORITHM_KINDS

    found = False
    if name in PRESETS:
        found = True
        click.echo(f"preset {name}: {summary(name)}\n")
        if reason := _waits(name):
            click.echo(f"  it cannot run as it is: {reason}\n")
        for key, value in PRESETS[name].items():
            click.echo(f"  algorithm.{key} = {toml_of(value)}")
    for registry in ALGORITHM_KINDS:
        if name in registry.names():
            if found:
                click.echo()
            found = True
            _print_plugin(registry.kind, name, registry.get(name))
    if not found:
        known = dict.fromkeys([*(n for registry in ALGORITHM_KINDS for n in registry.names()), *PRESETS])
        alike = [*(n for n in known if name.lower() in n), *get_close_matches(name, known, cutoff=0.4)]
        close = ", ".join(list(dict.fromkeys(alike))[:8]) or "none"
        raise UnknownNameError(f"no rule, preset or choice {name!r}; close to it: {close}; tether rules lists them all")


def _print_plugin(kind: str, name: str, cls: type) -> None:
    import dataclasses
    import inspect

    click.echo(f"{kind} {name}\n")
    click.echo(inspect.getdoc(cls))
    options = [f for f in dataclasses.fields(cls) if f.init]
    if options:
        click.echo("\noptions:")
    meanings = _meanings(inspect.getsource(cls))
    for f in options:
        default = "required" if f.default is dataclasses.MISSING else f.default
        click.echo(f"  {f.name} = {default}    {meanings.get(f.name, '')}".rstrip())


def _meanings(source: str) -> dict[str, str]:
    """The sentence under each field of a class: where a field's meaning stands."""
    import ast
    import textwrap

    body = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(body, ast.ClassDef)
    meanings: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field, ast.AnnAssign)
            assert isinstance(field.target, ast.Name)
            meanings[field.target.id] = str(text.value.value)
    return meanings

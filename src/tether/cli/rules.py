"""``tether rules``: every choice an algorithm has, from the registry itself."""

from __future__ import annotations

import click


@click.command("rules")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List rules, presets and the other choices by kind; with a NAME, explain one."""
    if name is None:
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
    for title in ("  name", "level", "rule", "epsilon", "proximal", "aggregation", "advantage", "measure"):
        table.add_column(title, no_wrap=True)
    for name, preset in PRESETS.items():
        rule, *others = (preset[key]["name"] for key in ("rule", "proximal", "aggregation", "advantage"))
        radii = f"{preset['rule']['epsilon_low']:g} / {preset['rule']['epsilon_high']:g}"
        table.add_row(f"  {name}", preset["level"], rule, radii, *others, preset["measure"])
    Console(width=120, highlight=False).print(table)
    click.echo("tether rules NAME explains one")


def _print_one(name: str) -> None:
    from tether.config.presets import PRESETS, summary
    from tether.errors import UnknownNameError
    from tether.registry import ALGORITHM_KINDS

    found = False
    if name in PRESETS:
        found = True
        click.echo(f"preset {name}: {summary(name)}\n")
        for key, value in PRESETS[name].items():
            click.echo(f"  algorithm.{key} = {value}")
    for registry in ALGORITHM_KINDS:
        if name in registry.names():
            if found:
                click.echo()
            found = True
            _print_plugin(registry.kind, name, registry.get(name))
    if not found:
        known = [n for registry in ALGORITHM_KINDS for n in registry.names()]
        raise UnknownNameError(f"no rule, preset or choice {name!r}; there are {', '.join([*known, *PRESETS])}")


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

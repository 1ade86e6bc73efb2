"""What ``tether probe`` is asked: which model, which engines in which formats, which tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tether.config.abilities import check_logp
from tether.config.bind import plugin
from tether.config.overrides import parse
from tether.engines.options import SamplingOptions
from tether.errors import ConfigError
from tether.ports import EngineOptions
from tether.registry import ENGINES

DTYPES: Final = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"}
"""Names of number formats, short and in full."""
MOST_RESPONSES: Final = 10**6
REPLAYED: Final = ("routing", "support")
SHARED: Final = frozenset(field.name for field in dataclasses.fields(SamplingOptions))
"""Settings that every kind of engine has: another kind than the run's own takes these over, and no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What to probe, and how."""

    source: str
    """A model by embedded name, folder or hub name; or a run directory, for its final model."""
    engines: tuple[str, ...] = ()
    """Kinds of engines; the run's own, or torch, if none is given."""
    engine_dtypes: tuple[str, ...] = ()
    """Each engine is probed in each of these; the run's own, or bfloat16, if none is given."""
    trainer_dtype: str | None = None
    """In which the trainer computes; the run's own, or float32, if not given."""
    replay: str | None = None
    """A replay that is asked for: a model or an engine that cannot is refused. Without it, all that can be replayed
    are."""
    trials: bool = True
    """Whether settings that may remove the mismatch are tried."""
    task_name: str | None = None
    """The run's own, or what the model was made for, if not given."""
    options: tuple[str, ...] = ()
    """Settings ``task.KEY=VALUE`` and ``engine.KEY=VALUE``."""
    prompts: int = 64
    completions: int = 4
    """Of each prompt."""
    max_tokens: int | None = None
    """Of a completion; the run's own, or 32, if not given."""
    temperature: float | None = None
    """The run's own, or 1, if not given."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    """What is sampled among; the run's own, or everything, if not given."""
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for whose, name in (*(("engine", d) for d in self.engine_dtypes), ("trainer", self.trainer_dtype)):
            if name is not None and name not in DTYPES:
                raise ConfigError(f"the {whose}'s dtype must be one of {', '.join(DTYPES)}; got {name!r}")
        if self.replay not in (None, *REPLAYED):
            raise ConfigError(f"a probe replays {' or '.join(map(repr, REPLAYED))}; got {self.replay!r}")
        for name in ("prompts", "completions", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"a probe needs at least 1 for {name}; got {value}; leave it out for the default")
        if self.prompts * self.completions > MOST_RESPONSES:
            raise ConfigError(
                f"a probe takes at most {MOST_RESPONSES} responses, prompts times completions; got "
                f"{self.prompts} x {self.completions}: take fewer"
            )
        if self.seed < 0:
            raise ConfigError(f"a seed must be at least 0; got {self.seed}")
        for text in self.options:
            if not parse(text)[0].startswith(("task.", "engine.")):
                raise ConfigError(
                    "only options of the task and of the engine can be set here, such as task.max_operations=12 or "
                    f"engine.max_rows=8; got {text!r}"
                )

    def of(self, table: str) -> dict[str, Any]:
        """The settings ``table.KEY=VALUE``, by key."""
        pairs = (parse(text) for text in self.options if text.startswith(f"{table}."))
        return {key.removeprefix(f"{table}."): value for key, value in pairs}

    def trainer(self, config: Mapping[str, Any]) -> str:
        """The number format of the trainer."""
        return DTYPES[self.trainer_dtype or config.get("trainer", {}).get("dtype", "float32")]

    def opened(self, config: Mapping[str, Any]) -> list[EngineOptions]:
        """Every engine in every format, bound and checked, with the settings of ``config``, a run's, underneath."""
        ran = dict(config.get("engine", {}))
        own = str(ran.pop("kind", "torch"))
        kinds = self.engines or (own,)
        dtypes = self.engine_dtypes or (str(ran.get("dtype", "bfloat16")),)
        return [self._engine(kind, dtype, ran, is_own=kind == own) for kind in kinds for dtype in dtypes]

    def _engine(self, kind: str, dtype: str, ran: Mapping[str, Any], *, is_own: bool) -> EngineOptions:
        names = ("max_tokens", "temperature", "top_k", "top_p", "min_p")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        table = {
            **{key: value for key, value in ran.items() if is_own or key in SHARED},
            **given,
            "dtype": DTYPES.get(dtype, dtype),
            **self.of("engine"),
        }
        options: EngineOptions = plugin(ENGINES, {"kind": kind, **table}, "engine", "kind")
        if not 1e-6 <= options.temperature <= 1e3:
            raise ConfigError(
                f"the temperature of a probe must lie in 1e-6 .. 1e3, since greedy tokens come from no distribution; "
                f"got {options.temperature}: take 1, or what the run will sample with"
            )
        check_logp(options.capabilities, options)
        can = options.capabilities
        if not options.truncation.is_none and not can.truncation:
            raise ConfigError(f"engine {kind!r} cannot sample among some ids only; leave out top_k, top_p and min_p")
        return options

"""Any Hugging Face causal language model, from a folder, the hub or the package; whole or refused, with a reason."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from tether.errors import ModelError
from tether.journal.schema import ADAPTER_FOLDER
from tether.journal.writer import flush
from tether.models.catalog import EMBEDDED, OBTAINABLE, folder_of
from tether.models.finite import check_finite_weights
from tether.models.lora import is_adapted, plain, save_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES: Final[Mapping[str, torch.dtype]] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What must be known of a model to write prompts for it and to read its answers; picklable, without weights."""

    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    """Every id that ends a completion: the tokenizer's and the generation config's, sorted."""
    pad_id: int
    """What fills empty places of a batch; may equal an end-of-sequence id, so mask by place, never by value."""
    context: int
    """Most tokens of a sequence, prompt and completion together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel(Vocabulary):
    """A causal language model with all that a loop must know about its tokens."""

    model: PreTrainedModel
    source: str
    """Where it was read from: an absolute folder, or a hub name."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Everything but the model."""
        return Vocabulary(tokenizer=self.tokenizer, eos_ids=self.eos_ids, pad_id=self.pad_id, context=self.context)


def resolve_source(source: str) -> str:
    """The folder of an embedded name or of a path, or the hub name itself.

    >>> Path(resolve_source("tiny-moe")).name
    'tiny_moe'
    >>> resolve_source("Qwen/Qwen3-0.6B")
    'Qwen/Qwen3-0.6B'
    >>> resolve_source("tiny-mow")
    Traceback (most recent call last):
    tether.errors.ModelError: no model 'tiny-mow': embedded are tiny-moe, tiny-dense, tiny-moe-sorting, \
tiny-dense-sorting; or give a folder that exists, or a hub name such as org/name
    """
    if source in EMBEDDED:
        return str(folder_of(source))
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        return str(folder.resolve())
    is_near = folder.parent.is_dir() and folder.parent != Path(".")
    if is_near and folder.name not in OBTAINABLE:
        raise ModelError(
            f"no model {source!r}: there is no {folder.name!r} in that folder; give a run or a model that is there, or "
            "a hub name such as org/name whose first part is no folder here"
        )
    if not is_near and _HUB_NAME.fullmatch(source):
        return source
    if (name := folder.name) in OBTAINABLE:
        raise ModelError(f"there is no model in {source!r} yet; make it once with: tether model {name} --out {source}")
    raise ModelError(
        f"no model {source!r}: embedded are {', '.join(EMBEDDED)}; or give a folder that exists, "
        f"or a hub name such as org/name"
    )


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; refused if it has no end-of-sequence token, since no completion could ever stop."""
    from transformers import AutoTokenizer

    place = resolve_source(source)
    _check_folder(place)
    tokenizer: PreTrainedTokenizerBase = _read(place, AutoTokenizer.from_pretrained, trust_remote_code=False)
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"a tokenizer needs an end-of-sequence token, or no completion stops; {source!r} has none; "
            f"set eos_token in its tokenizer_config.json"
        )
    forget_origin(tokenizer)
    return tokenizer


def forget_origin(tokenizer: PreTrainedTokenizerBase) -> None:
    """Where a tokenizer was read from is no part of it, and is not saved with it."""
    for trace in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(trace, None)


def load_model(source: str, *, dtype: str = "float32", device: str = "cpu") -> LoadedModel:
    """Read a model and its tokenizer, check that they fit, and pin what would make it slow or change its loss.

    Mixtures of experts run as grouped matrix products (``grouped_mm``); where this build of torch has none, as a loop
    over the experts (``eager``). Their load-balance loss is off. The model comes in evaluation mode.
    """
    from transformers import AutoModelForCausalLM

    if dtype not in DTYPES:
        raise ModelError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    tokenizer = load_tokenizer(source)
    place = resolve_source(source)
    model, report = _read(
        place,
        AutoModelForCausalLM.from_pretrained,
        dtype=DTYPES[dtype],
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"every weight must come from the model's files; {source!r} lacks {len(missing)} of them, such as "
            f"{missing[0]}, which would start at random; check that its config.json belongs to its weights"
        )
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"a model needs an attention KV cache, whose rows can be dropped as completions end; {source!r} "
            f"({type(model).__name__}) keeps a recurrent state instead; take a transformer"
        )
    check_finite_weights(model.state_dict(), f"model {source!r}")
    pin_experts(model)
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ModelError(
            f"a model needs an embedding for every token; {source!r} has {rows} rows for {len(tokenizer)} tokens; "
            f"take the tokenizer it was trained with"
        )
    return together(model.to(device).eval(), tokenizer, source=place, context=_context(model, tokenizer))


def load_skeleton(source: str, *, dtype: str = "float32") -> LoadedModel:
    """A model without its weights, on device ``meta``, and its tokenizer: names and shapes of every tensor, ids that
    end a completion, the context. For an engine that reads the weights by itself."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    tokenizer = load_tokenizer(source)
    place = resolve_source(source)
    config = _read(place, AutoConfig.from_pretrained, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype], trust_remote_code=False)
    with contextlib.suppress(OSError):  # a model may have no such file, and then the configuration's ids count
        model.generation_config = GenerationConfig.from_pretrained(place)
    return together(model.eval(), tokenizer, source=place, context=_context(model, tokenizer))


def together(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, source: str, context: int) -> LoadedModel:
    """A model with its tokenizer, and the ids that follow from both; padding falls back to the first end id."""
    eos_ids, pad_id = end_ids(tokenizer, model), tokenizer.pad_token_id
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        source=source,
        eos_ids=eos_ids,
        pad_id=eos_ids[0] if pad_id is None else int(pad_id),
        context=context,
    )


def _context(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """What the configuration says; the tokenizer's limit for the few models whose configuration says nothing."""
    configured = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(tokenizer.model_max_length if configured is None else configured)


def end_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> tuple[int, ...]:
    """Every id that ends a completion: the tokenizer's own, and one or several of the generation config."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    several = configured if isinstance(configured, list | tuple) else [] if configured is None else [configured]
    return tuple(sorted({int(tokenizer.eos_token_id), *map(int, several)}))


def save_model(
    loaded: LoadedModel, folder: str | Path, *, card: str | None = None, dtype: torch.dtype | None = None
) -> Path:
    """Write a plain Hugging Face folder (safetensors, tokenizer, generation config): whole, or not at all.

    It is written beside its place, flushed to disk, then renamed. A folder that exists is refused. ``card`` becomes
    its ``README.md``; weights are converted to ``dtype``. Of a model with an adapter the merged weights are written,
    and the adapter beside them.
    """
    target = Path(folder).expanduser().absolute()
    if target.exists():
        raise ModelError(f"a model is written to a new folder; {target} exists; choose another, or remove it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise ModelError(f"cannot write the model to {target}: {error}; choose a folder that can be written") from error
    try:
        with _no_progress_bars():
            plain(loaded.model, dtype or loaded.model.dtype).save_pretrained(beside)
        if is_adapted(loaded.model):
            save_adapter(loaded.model, beside / ADAPTER_FOLDER)
        loaded.tokenizer.save_pretrained(beside)
        if card is not None:
            (beside / "README.md").write_text(card, encoding="utf-8")
        beside.chmod(0o755)
        for path in sorted(beside.rglob("*"), reverse=True):
            path.chmod(0o755 if path.is_dir() else 0o644)
            flush(path)
        flush(beside)
        beside.rename(target)
        flush(target.parent)
    except Exception as error:  # safetensors and tokenizers raise classes of their own when a disk is full
        raise ModelError(
            f"cannot write the model to {target}: {type(error).__name__}: {error}; make room, or choose another folder"
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)  # gone already if it was renamed
    return target


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Silence the bars of transformers for a moment; whoever wanted them has them again afterwards."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def _check_folder(place: str) -> None:
    """Refuse a local folder that holds no configuration, or weights of another kind than safetensors."""
    folder = Path(place)
    if not folder.is_dir():
        return
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"a model folder holds config.json; {folder} does not; give the folder that save_pretrained wrote"
        )
    if not any(folder.glob("*.safetensors")):
        found = ", ".join(sorted(p.name for p in folder.glob("*.bin"))) or "no weights"
        raise ModelError(
            f"weights are read from safetensors only, since other files can run code; {folder} holds {found}; "
            f"save it again with save_pretrained(folder)"
        )


def _read(place: str, read: Any, **options: Any) -> Any:
    """Call a reader of transformers; what the hub, the network or the files object to becomes one message."""
    try:
        with _no_progress_bars():
            return read(place, **options)
    except Exception as error:  # files from elsewhere: parsers of three libraries raise what they like
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        way = (
            "check its files"
            if Path(place).is_dir()
            else "check the name and the network, or give a folder on this disk"
        )
        raise ModelError(f"{place!r} cannot be loaded: {first}; {way}") from error


def pin_experts(model: PreTrainedModel) -> None:
    """Choose the implementation of the experts, and turn the load-balance loss off."""
    for config in {id(c): c for c in (model.config, model.config.get_text_config())}.values():
        if getattr(config, "output_router_logits", False):
            config.output_router_logits = False
    if not model._can_set_experts_implementation():
        return
    has_grouped = hasattr(torch.nn.functional, "grouped_mm") or hasattr(torch, "_grouped_mm")
    model.set_experts_implementation("grouped_mm" if has_grouped else "eager")

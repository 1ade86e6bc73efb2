"""What can compute here: processor, memory, GPUs."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator
from typing import Any, Final

from tether.machine.finding import Finding, gib, reason_of
from tether.machine.limits import cores, memory
from tether.machine.surroundings import Surroundings
from tether.machine.versions import build_of

SECTION: Final = "devices"
LITTLE_MEMORY: Final = 2 * 2**30
"""Bytes; the self-test alone peaks at about half of it, most of that torch and transformers themselves."""
FAST_BFLOAT16: Final = {"avx512_bf16": "AVX512", "amx_bf16": "AMX", "bf16": "ARM"}
"""Flag of the processor, and the unit that multiplies bfloat16."""
NATIVE_BFLOAT16: Final = (8, 0)
"""Compute capability from which NVIDIA's GPUs multiply bfloat16."""
WHEELS: Final = "https://pytorch.org/get-started/locally"


def look(here: Surroundings) -> Iterator[Finding]:
    """Processor, cores, memory, GPUs."""
    yield _processor(here)
    yield _cores(here)
    yield _memory(here)
    yield from _gpus(here)


def _processor(here: Surroundings) -> Finding:
    lines = (line.partition(":") for line in here.text("proc/cpuinfo").splitlines())
    table = {key.strip().lower(): value.strip() for key, _, value in lines}
    model = table.get("model name") or platform.processor() or platform.machine() or "unknown"
    flags = f"{table.get('flags', '')} {table.get('features', '')}".split()
    units = [unit for flag, unit in FAST_BFLOAT16.items() if flag in flags]
    value = f"{model}, bfloat16 by {' and '.join(units)}" if units else model
    return Finding(section=SECTION, name="processor", status="ok", value=value)


def _cores(here: Surroundings) -> Finding:
    found = cores(here)
    granted = [f"affinity {found.affinity}"] if found.affinity not in (None, found.present) else []
    granted += [f"cgroup quota {found.quota:g}"] if found.quota is not None else []
    value = f"{found.usable:g} usable" + (f" of {found.present}" if found.present else "")
    value += f" ({', '.join(granted)})" if granted else ""
    return Finding(section=SECTION, name="cores", status="ok", value=value)


def _memory(here: Surroundings) -> Finding:
    found = memory(here)
    parts = [f"{gib(found.available)} available"] if found.available is not None else []
    parts += [f"of {gib(found.total)}"] if found.total is not None else []
    parts += [f"(cgroup limit {gib(found.limit)})"] if found.limit is not None else []
    value = " ".join(parts) or "unknown: this system does not tell"
    if found.available is not None and found.available < LITTLE_MEMORY:
        way_out = (
            "close what else holds memory, or raise the container's limit; models beyond the embedded ones need more"
        )
        return Finding(section=SECTION, name="memory", status="warn", value=value, way_out=way_out)
    return Finding(section=SECTION, name="memory", status="ok", value=value)


def _gpus(here: Surroundings) -> Iterator[Finding]:
    torch = here.torch()
    if torch is None:
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        is_available, count = bool(torch.cuda.is_available()), int(torch.cuda.device_count())
    if is_available and count:
        yield from (_gpu(torch, index) for index in range(count))
    else:
        yield _no_gpu(here, torch, [str(warning.message) for warning in said])


def _gpu(torch: Any, index: int) -> Finding:
    name = f"cuda:{index}"
    try:
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        is_native = bool(getattr(torch.version, "hip", None)) or (properties.major, properties.minor) >= NATIVE_BFLOAT16
    except Exception as error:  # a GPU that another process holds, or that has failed
        way_out = "free it, choose another with CUDA_VISIBLE_DEVICES, or train on the processor: --set run.device=cpu"
        return Finding(section=SECTION, name=name, status="fail", value=reason_of(error), way_out=way_out)
    value = f"{properties.name}, {gib(free)} free of {gib(total)}, bfloat16 {'native' if is_native else 'emulated'}"
    way_out = "" if is_native else "bfloat16 is slow here: --set engine.dtype=float32"
    return Finding(section=SECTION, name=name, status="ok" if is_native else "warn", value=value, way_out=way_out)


def _no_gpu(here: Surroundings, torch: Any, said: list[str]) -> Finding:
    """Why there is none: no GPU, no driver, or a torch that cannot use it."""
    is_cpu_build = torch.version.cuda is None and getattr(torch.version, "hip", None) is None
    has_driver = any((here.root / path).exists() for path in ("dev/nvidia0", "proc/driver/nvidia/version"))
    if is_cpu_build and has_driver:
        value = "a GPU is here, but this torch is built for CPUs"
        way_out = f"to use it, install torch for CUDA: {WHEELS}"
    elif is_cpu_build:
        return Finding(section=SECTION, name="gpu", status="ok", value="none: everything runs on the processor")
    elif here.variables.get("CUDA_VISIBLE_DEVICES") == "":
        value = "hidden by CUDA_VISIBLE_DEVICES, which is empty"
        way_out = "unset CUDA_VISIBLE_DEVICES to use it"
    else:
        why = f": {said[0].splitlines()[0]}" if said else ""
        value = f"torch is {build_of(torch)}, but finds no GPU and driver{why}"
        way_out = (
            "fine for the processor; for a GPU install its driver, start the container with GPUs (docker run "
            f"--gpus all), or take a torch that the driver knows: {WHEELS}"
        )
    return Finding(section=SECTION, name="gpu", status="warn", value=value, way_out=way_out)

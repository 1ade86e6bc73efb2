"""Keeps ``docs/engines.md``: ``python docs/engines.py``; ``--check`` only says what is old or unproven.

The words of the page are written by hand. The tables between ``<!-- NAME -->`` and ``<!-- end -->`` are made from what
the registered engines declare, and ``EVIDENCE`` says which test shows each of it. An engine, or an ability, without
evidence here fails the check; so does evidence of what is not declared, and a test that is not there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tether.ports import EngineCapabilities
from tether.registry import ENGINES

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = Path(__file__).parent / "engines.md"
BLOCK: Final = re.compile(r"(<!-- ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
UNVERIFIED: Final = "unverified: "
"""What evidence begins with where no test on the real thing shows an ability; the reason follows, and may name a test
against a double of it."""
TEST: Final = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
ROWS: Final[Mapping[str, str]] = {
    "logp": "log-probs of",
    "entropy": "entropy of each token's distribution",
    "alternatives": "most probable ids of each token",
    "token_versions": "version of each token",
    "truncation": "`top_k`, `top_p`, `min_p`",
    "kept": "kept set of each token",
    "routing": "experts of each token",
    "in_flight": "completions under way, when weights come",
    "lora": "adapter in the place of all weights",
    "seeded": "a sample depends on its seed alone",
    "virtual_time": "placement `inline`",
    "cpu": "without a GPU",
}
"""Fields of ``EngineCapabilities`` in words."""

Evidence = Mapping[str, Mapping[str, str]]
TORCH: Final = "tests/engines/test_torch.py::"
VLLM: Final = "tests/vllm/"
SERVER: Final = "tests/vllm/test_server.py::"
DOUBLE: Final = f"{UNVERIFIED}against a double of its protocol alone, "
SGLANG: Final = f"{DOUBLE}tests/engines/served/test_sglang.py::"
VLLM_DOUBLE: Final = "tests/engines/served/test_vllm_server.py::"
NO_SERVER: Final = f"{UNVERIFIED}no server of another kind was run"
EVIDENCE: Final[Evidence] = {
    "torch": {
        "logp": f"{TORCH}test_float32_logp_and_entropy_equal_a_plain_forward",
        "entropy": f"{TORCH}test_float32_logp_and_entropy_equal_a_plain_forward",
        "alternatives": f"{TORCH}test_alternatives_are_reported_to_those_who_ask",
        "token_versions": f"{TORCH}test_every_token_carries_the_version_that_made_it",
        "truncation": "tests/engines/test_kept.py::test_frequencies_are_those_of_the_kept_ids_renormalized",
        "kept": "tests/engines/test_kept.py::"
        "test_tokens_come_from_what_is_kept_with_its_log_probs_and_the_entropy_of_all",
        "routing": "tests/engines/test_routes.py::test_routes_of_prompt_and_completion_are_those_of_a_plain_forward",
        "in_flight/finish": "tests/engines/test_in_flight.py::test_finish_lets_rows_end_and_nobody_join",
        "in_flight/keep": "tests/engines/test_in_flight.py::test_keep_goes_on_under_new_weights_over_old_keys",
        "in_flight/recompute": "tests/engines/test_in_flight.py::"
        "test_recompute_goes_on_as_if_the_new_weights_had_read_everything",
        "in_flight/restart": "tests/engines/test_in_flight.py::"
        "test_restart_sends_rows_back_and_those_that_wait_go_on_waiting",
        "lora": "tests/pipeline/test_lora.py::test_after_each_load_the_engine_answers_and_scores_as_the_trainer_would",
        "seeded": f"{TORCH}test_a_sample_does_not_depend_on_the_batch_its_order_or_the_padding",
        "virtual_time": f"{TORCH}test_time_is_spent_in_forward_passes_every_few_tokens",
        "cpu": f"{TORCH}test_the_embedded_model_samples_near_the_float32_trainer",
    },
    "vllm": {
        "logp": f"{VLLM}test_sampling.py::test_log_probs_are_the_trainers_in_float32",
        "alternatives": f"{VLLM}test_sampling.py::test_alternatives_are_the_most_probable_ids_in_order",
        "token_versions": f"{VLLM}test_in_flight.py::test_recompute_goes_on_as_if_the_new_weights_had_read_everything",
        "truncation": f"{VLLM}test_sampling.py::test_truncated_log_probs_are_those_over_the_kept_set",
        "kept": f"{VLLM}test_sampling.py::test_kept_sets_are_what_the_truncation_says",
        "routing": f"{VLLM}test_routes.py::test_routes_of_a_mixed_batch_are_those_of_the_trainers_routers",
        "in_flight/finish": f"{VLLM}test_in_flight.py::test_finish_lets_rows_end_and_nobody_join",
        "in_flight/keep": f"{VLLM}test_in_flight.py::test_keep_goes_on_over_old_keys_and_says_so",
        "in_flight/recompute": f"{VLLM}test_in_flight.py::"
        "test_recompute_goes_on_as_if_the_new_weights_had_read_everything",
        "in_flight/restart": f"{VLLM}test_in_flight.py::test_restart_sends_rows_back_as_they_are",
        "seeded": f"{VLLM}test_sampling.py::test_a_sample_depends_on_its_seed_and_not_on_its_company",
        "virtual_time": f"{VLLM}test_in_flight.py::test_every_step_is_one_token_of_virtual_time",
        "cpu": f"{VLLM}test_weights.py::test_every_publication_changes_the_weights_to_the_trainers",
    },
    "vllm-server": {
        "logp": f"{SERVER}test_log_probs_are_of_the_distribution_sampled_from",
        "alternatives": f"{SERVER}test_alternatives_are_the_most_probable",
        "token_versions": f"{SERVER}test_caches_computed_anew_make_every_token_after_a_load_wholly_new",
        "truncation": f"{SERVER}test_log_probs_are_of_the_distribution_sampled_from",
        "kept": f"{UNVERIFIED}told by builds for GPUs alone; against a double, "
        f"{VLLM_DOUBLE}test_kept_ids_come_with_a_truncation_and_are_refused_where_the_server_does_not_tell_them",
        "in_flight/finish": f"{DOUBLE}{VLLM_DOUBLE}"
        "test_tokens_are_of_the_weights_that_they_say_in_every_way_of_loading",
        "in_flight/keep": f"{SERVER}test_kept_caches_go_on_and_are_told",
        "in_flight/recompute": f"{SERVER}test_caches_computed_anew_make_every_token_after_a_load_wholly_new",
        "in_flight/restart": f"{SERVER}test_completions_that_restart_come_back_and_go_on_under_the_new_weights",
        "cpu": f"{SERVER}test_log_probs_of_a_float32_server_are_the_trainers_after_every_publication",
    },
    "sglang": {
        "logp": f"{SGLANG}test_a_server_that_reports_log_probs_before_the_temperature_is_found_out",
        "alternatives": f"{UNVERIFIED}asked for as its documentation says",
        "token_versions": f"{SGLANG}test_tokens_log_probs_and_versions_are_those_of_the_weights_that_were_published",
        "truncation": f"{SGLANG}test_truncated_samples_have_their_kept_ids_and_log_probs_renormalized_over_them",
        "kept": f"{SGLANG}test_truncated_samples_have_their_kept_ids_and_log_probs_renormalized_over_them",
        "in_flight/finish": f"{SGLANG}test_a_load_that_lets_finish_waits_and_nobody_begins_meanwhile",
        "in_flight/keep": f"{SGLANG}test_weights_that_change_inside_a_completion_are_told_token_by_token",
        "in_flight/recompute": f"{SGLANG}test_weights_that_change_inside_a_completion_are_told_token_by_token",
        "in_flight/restart": f"{SGLANG}"
        "test_completions_that_are_told_to_restart_come_back_with_what_they_have_and_go_on",
    },
    "openai": {
        "logp": NO_SERVER,
        "truncation": NO_SERVER,
        "in_flight/finish": NO_SERVER,
        "cpu": NO_SERVER,
    },
}
"""By kind of engine and ability (``in_flight`` by its ways): the test that shows it, or ``unverified: REASON``."""


def main() -> None:
    """Write the page, or with ``--check`` exit 1 if it is old or something on it is unproven."""
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"]):
        sys.exit("usage: python docs/engines.py [--check]")
    found = {kind: cls().capabilities for kind, cls in ENGINES.items()}
    if faults := list(faults_of(found, EVIDENCE)):
        sys.exit("docs/engines.py, EVIDENCE: " + "; ".join(faults))
    page = made(PAGE.read_text(encoding="utf-8"), found)
    if arguments:
        is_old = page != PAGE.read_text(encoding="utf-8")
        sys.exit("not what the engines declare now: engines.md; run `python docs/engines.py`" if is_old else 0)
    PAGE.write_text(page, encoding="utf-8")


def made(page: str, found: Mapping[str, EngineCapabilities]) -> str:
    """The page with every block made anew."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]](found)}\n\n{block[3]}", page)


def abilities_of(can: EngineCapabilities) -> list[str]:
    """Keys of everything that an engine declares, as ``EVIDENCE`` has them."""
    flags = [name for name in ROWS if name not in ("logp", "in_flight") and getattr(can, name)]
    return ["logp", *flags, *(f"in_flight/{way}" for way in can.in_flight)]


def faults_of(found: Mapping[str, EngineCapabilities], evidence: Evidence) -> Iterator[str]:
    """What is declared and not shown, or shown and not declared, or shown by a test that is not there."""
    for kind, can in found.items():
        declared, shown = abilities_of(can), evidence.get(kind, {})
        yield from (f"{kind} declares {name!r}; which test shows it?" for name in declared if name not in shown)
        yield from (f"{kind} no longer declares {name!r}" for name in shown if name not in declared)
        for name, proof in shown.items():
            tests = TEST.findall(proof)
            if not tests and not proof.startswith(UNVERIFIED):
                yield f"{kind} {name!r}: {proof!r} is neither a test nor 'unverified: REASON'"
            yield from (
                f"{kind} {name!r}: there is no test {file}::{test}" for file, test in tests if not _is_there(file, test)
            )


def _is_there(file: str, test: str) -> bool:
    path, wanted = ROOT / file, rf"^(async )?def {test}\("
    return path.is_file() and re.search(wanted, path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def capabilities(found: Mapping[str, EngineCapabilities]) -> str:
    """A row for each ability, a column for each engine; a star marks what no test on the real thing shows."""
    rows = [["", *(f"`{kind}`" for kind in found)], ["---"] * (1 + len(found))]
    for name, words in ROWS.items():
        rows.append([words, *(_cell(kind, name, can) for kind, can in found.items())])
    return _table(rows)


def evidence(found: Mapping[str, EngineCapabilities]) -> str:
    """For each engine, which test shows what."""
    parts = []
    for kind, can in found.items():
        rows = [["ability", "shown by"], ["---"] * 2]
        for name in abilities_of(can):
            proof = EVIDENCE[kind][name]
            words = ROWS[name.partition("/")[0]] + (f": `{way}`" if (way := name.partition("/")[2]) else "")
            rows.append([words, TEST.sub(r"`\g<0>`", proof)])
        parts.append(f"### `{kind}`\n\n{ENGINES.summary(kind)}\n\n{_table(rows)}")
    return "\n\n".join(parts)


BLOCKS: Final[Mapping[str, Callable[[Mapping[str, EngineCapabilities]], str]]] = {
    "capabilities": capabilities,
    "evidence": evidence,
}


def _cell(kind: str, name: str, can: EngineCapabilities) -> str:
    def star(key: str) -> str:
        return " \\*" if EVIDENCE[kind][key].startswith(UNVERIFIED) else ""

    if name == "in_flight":
        return ", ".join(f"{way}{star(f'in_flight/{way}')}" for way in can.in_flight)
    value = getattr(can, name)
    if name == "logp":
        return {"processed": "what was sampled from", "raw": "the model"}[value] + star(name)
    return f"yes{star(name)}" if value else "-"


def _table(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    main()

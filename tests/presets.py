"""Which presets can run today; the others wait for what no part of a run provides yet."""

from tether.config.presets import PRESETS

TOP_K = "needs the log-probs of the engine's most probable tokens"
WAITING = {
    "dppo-top-k": TOP_K,
    "dppo-top-k-kl": TOP_K,
    "sat-turn": "needs turns of tool use",
    "estr": "threshold of estr must be given",
}
"""Presets that are refused, and what they are told; whatever provides an input takes its presets out."""
NEEDED = {
    **{name: ["old.strategy=snapshots"] for name in ("icepop-old", "grpo-old")},
    **{name: ["pipeline.updates_per_batch=2"] for name in ("gspo-r2", "sat-gspo-r2")},
}
"""What presets need of other tables of a recipe."""
RUNNING = [name for name in PRESETS if name not in WAITING]

"""The exceptions a user may meet; each refines a built-in one, so ``except ValueError`` still works.

A message has three parts: the rule, the value that broke it, and the way out.
"""


class TetherError(Exception):
    """Anything that tether itself raises on purpose."""


class ConfigError(TetherError, ValueError):
    """A setting that cannot work: unknown, out of range, or at odds with another."""


class UnknownNameError(ConfigError):
    """A name that no plug-in has."""


class ModelError(TetherError, ValueError):
    """A model or tokenizer that cannot be trained as it is, or cannot be written."""


class DataError(TetherError, ValueError):
    """A prompt, a completion or a reward that breaks a rule of the data."""


class RolloutError(TetherError):
    """Something wrong with one rollout, which it names."""

    def __init__(self, message: str, *, rollout_id: str = "") -> None:
        super().__init__(message)
        self.rollout_id = rollout_id


class RewardError(RolloutError, RuntimeError):
    """A reward function that raised, or returned something other than a finite number."""


class VerifierError(TetherError, RuntimeError):
    """A verifier that cannot judge at all: its workers do not start, or it was closed. Never a matter of an answer."""


class NonFiniteError(RolloutError, ArithmeticError):
    """A NaN or an infinity where a number is needed; names tensor, rollout, token and versions."""


class StalenessError(TetherError, RuntimeError):
    """A token staler than the bound printed at start: a fault of the pipeline, never of the data."""


class OldVersionError(TetherError, RuntimeError):
    """A token whose old log-prob cannot be told: the weights that sampled it are held no longer, or never were."""


class LedgerError(TetherError, RuntimeError):
    """Books that do not close: a rollout without a fate, or with two. A fault of the pipeline, never of the data."""


class StalledError(TetherError, RuntimeError):
    """Every loop waits for another, or one works longer than its deadline."""


class EngineLostError(TetherError, RuntimeError):
    """A rollout engine that died and was started anew: it holds no weights, and what was asked must be asked again."""


class ProcessLostError(TetherError, RuntimeError):
    """A process of the run that died and cannot be started anew."""


class RunDirectoryError(TetherError, OSError):
    """A run directory that cannot be written, is used already, or cannot be read."""


class ResumeError(TetherError, RuntimeError):
    """A run that cannot go on from where it stopped."""


class SelfCheckError(TetherError, RuntimeError):
    """Engine and trainer do not agree as they must; says which check failed and what to try."""

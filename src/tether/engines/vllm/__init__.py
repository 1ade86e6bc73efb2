"""vLLM in this process, stepped by our own loop: one step is one token a row, and weights change between two steps.

What vLLM keeps to itself is touched in ``core`` alone. Here vLLM is imported when an engine is opened, never before.
"""

from tether.engines.vllm.options import Vllm

__all__ = ["Vllm"]

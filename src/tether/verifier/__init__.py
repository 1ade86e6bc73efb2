"""Whether an answer to a mathematical question is right: three modes, bounded in time and memory. No torch, and no
model text is ever evaluated as code."""

"""tether: asynchronous reinforcement learning of language models that stays stable when the data are stale."""

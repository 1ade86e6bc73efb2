"""Temporary."""

from __future__ import annotations


def score(reward, prompt, response, rollout_id):
    return float(reward(prompt, response))

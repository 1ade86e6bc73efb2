"""Arithmetic of ``logp_proximal``: the policy that the ratio is clipped against, one choice a file."""

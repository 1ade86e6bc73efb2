"""Loading real models, the embedded one and its warm-up, head and log-probs, fingerprints."""

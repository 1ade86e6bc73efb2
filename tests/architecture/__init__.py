"""The tree itself: layers, budgets, names, links."""

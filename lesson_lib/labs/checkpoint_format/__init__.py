"""Checkpoints to look at: where state belongs, what it costs, what damages it, who finds it."""

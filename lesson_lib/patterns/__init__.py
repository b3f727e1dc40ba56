"""Ways to keep a run's state besides the checkpoint: in memory, as events, as events and states."""

"""Lesson 10: which state to trust, and what to do when none can be.

`recover` tries the `steps` in order. They look at what the events have `told`, at the `judging` of
kept checkpoints and at `rebuilding`; `settling` comes before. `backups` and `buffer` stand alone.
"""

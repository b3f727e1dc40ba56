"""Lesson 10: which checkpoint to trust, and what to do when none can be."""

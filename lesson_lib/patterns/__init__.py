"""Lesson 11: four ways to keep a run's state, one protocol."""

"""Lesson 10: a run that is damaged in every way, a store that is away, and the ways back."""

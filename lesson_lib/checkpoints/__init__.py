"""Lesson 09: what a checkpoint holds, as bytes that can be trusted, kept no longer than needed."""

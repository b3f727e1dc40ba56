"""Losing power: what SQLite does to the disk, what a power cut may leave of it, what is found.

A process that dies loses nothing that the operating system was given. A machine that dies loses
what was not synced.
"""

from lesson_lib.labs.crash_everywhere.powerloss.recording import (
    SETTINGS,
    operations,
    package_setting,
    record,
)
from lesson_lib.labs.crash_everywhere.powerloss.surveys import Survey, first_loss, go_on, survey

__all__ = [
    "SETTINGS",
    "Survey",
    "first_loss",
    "go_on",
    "operations",
    "package_setting",
    "record",
    "survey",
]

"""Losing power: what SQLite does to the disk, what a power cut may leave of it, what is found.

A process that dies loses nothing that the operating system was given. A machine that dies loses
what was not synced.
"""

from lesson_lib.crashes.powerloss.recording import (
    LEVELS,
    SETTINGS,
    Operation,
    Recording,
    package_setting,
    record,
    without,
)
from lesson_lib.crashes.powerloss.states import DiskState, disk_states
from lesson_lib.crashes.powerloss.verdicts import (
    Found,
    Survey,
    Verdict,
    examine,
    examined,
    first_loss,
    go_on,
    operations,
    survey,
)

__all__ = [
    "LEVELS",
    "SETTINGS",
    "DiskState",
    "Found",
    "Operation",
    "Recording",
    "Survey",
    "Verdict",
    "disk_states",
    "examine",
    "examined",
    "first_loss",
    "go_on",
    "operations",
    "package_setting",
    "record",
    "survey",
    "without",
]

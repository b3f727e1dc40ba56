"""Checkpoints as bytes that can be trusted, and kept no longer than needed.

`codec` makes bytes of a state and checks them, `archive` keeps every one (`Keep`), `history` keeps
what leaves the window (`Window`), `redaction` cleans (`Redact`); `retention` says what may go,
`event_guard` what an event may hold, `private_file` who may read the file.
"""

# %% exercise-1 wrong: the newest that is kept
def choose(kept, told):
    return max(version for version, whole, content in kept)
# %% exercise-1 wrong: the newest that is whole
def choose(kept, told):
    return max((v for v, whole, content in kept if whole), default=None)
# %% exercise-1 wrong: does not see a dispute
def choose(kept, told):
    fit = [v for v, whole, content in kept if whole and v in told]
    return max(fit, default=None)
# %% exercise-1 wrong: takes a copy for a dispute
def choose(kept, told):
    fit = [v for v, whole, content in kept if whole and v in told]
    return max((v for v in fit if fit.count(v) == 1), default=None)
# %% exercise-1 wrong: a damaged row disputes
def choose(kept, told):
    for version in sorted(told, reverse=True):
        here = {content for v, whole, content in kept if v == version}
        whole = any(whole for v, whole, content in kept if v == version)
        if whole and len(here) == 1:
            return version
    return None
# %% exercise-1 wrong: the last in the list
def choose(kept, told):
    return kept[-1][0]
# %% exercise-2 wrong: a lie that fits
changes = {"context_priority": "urgent", "context_draft": "Wait."}
# %% exercise-2 wrong: the schema notices
changes = {"context_draft": 7}
# %% exercise-2 wrong: an unknown field
changes = {"context_mood": "good"}
# %% exercise-2 wrong: that of the table
changes = {"context_runbook": None}
# %% exercise-2 wrong: another one of the table
changes = {"next_action": "draft_reply", "ticket_id": "T102"}
# %% exercise-2 wrong: the prefix is forgotten
changes = {"priority": None}
# %% exercise-2 wrong: no dict
changes = "context_draft"
# %% exercise-3 wrong: still taken off before the commit, from a copy
def flush(connection, waiting, write):
    with connection:
        for entry in list(waiting):
            waiting.remove(entry)
            write(connection, entry)
# %% exercise-3 wrong: emptied inside the block
def flush(connection, waiting, write):
    with connection:
        for entry in waiting:
            write(connection, entry)
        waiting.clear()
# %% exercise-3 wrong: never emptied
def flush(connection, waiting, write):
    with connection:
        for entry in waiting:
            write(connection, entry)
# %% exercise-3 wrong: emptied whatever happened
def flush(connection, waiting, write):
    try:
        with connection:
            for entry in waiting:
                write(connection, entry)
    finally:
        waiting.clear()
# %% exercise-3 wrong: the last one first
def flush(connection, waiting, write):
    while waiting:
        with connection:
            write(connection, waiting[-1])
        waiting.pop()
# %% exercise-3 wrong: nobody hears of the failure
def flush(connection, waiting, write):
    try:
        with connection:
            for entry in waiting:
                write(connection, entry)
    except Exception:
        return
    waiting.clear()
# %% exercise-3 wrong: one transaction each, emptied at the end
def flush(connection, waiting, write):
    for entry in waiting:
        with connection:
            write(connection, entry)
    waiting.clear()
# %% exercise-3 wrong: writes nothing
def flush(connection, waiting, write):
    pass

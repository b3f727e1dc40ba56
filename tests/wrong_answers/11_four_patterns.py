# %% exercise-1 wrong: invents an audience
def upcast_3(event_type, payload):
    if event_type == "reply_drafted":
        return event_type, payload | {"audience": "shift technician"}
    return event_type, payload
# %% exercise-1 wrong: changes the event that was read
def upcast_3(event_type, payload):
    if event_type == "reply_drafted":
        payload["audience"] = "not recorded"
    return event_type, payload
# %% exercise-1 wrong: every event gets an audience
def upcast_3(event_type, payload):
    return event_type, payload | {"audience": "not recorded"}
# %% exercise-1 wrong: loses the end of a run
def upcast_3(event_type, payload):
    if event_type == "reply_drafted":
        return event_type, payload | {"audience": "not recorded"}
    return ("page_read" if event_type == "run_finished" else event_type), payload
# %% exercise-1 wrong: forgets the draft
def upcast_3(event_type, payload):
    if event_type == "reply_drafted":
        return event_type, {"audience": "not recorded"}
    return event_type, payload
# %% exercise-1 wrong: nothing changes
def upcast_3(event_type, payload):
    return event_type, payload
# %% exercise-1 wrong: the payload alone
def upcast_3(event_type, payload):
    return payload | {"audience": "not recorded"}
# %% exercise-1 wrong: a type of its own
def upcast_3(event_type, payload):
    if event_type == "reply_drafted":
        return "reply_drafted_v4", payload | {"audience": "not recorded"}
    return event_type, payload
# %% exercise-2 wrong: the list still changes
def add_note(state, event):
    state["notes"].append(event["text"])
    return state | {"last_seen": event["at"]}
# %% exercise-2 wrong: the clock is still read
def add_note(state, event):
    now = datetime.now(UTC).isoformat()
    return {"notes": [*state["notes"], event["text"]], "last_seen": now}
# %% exercise-2 wrong: a clock that stands still
def add_note(state, event):
    now = datetime(2026, 1, 5, tzinfo=UTC).isoformat()
    return {"notes": [*state["notes"], event["text"]], "last_seen": now}
# %% exercise-2 wrong: the first note comes last
def add_note(state, event):
    return {"notes": [event["text"], *state["notes"]], "last_seen": event["at"]}
# %% exercise-2 wrong: returns nothing
def add_note(state, event):
    notes = [*state["notes"], event["text"]]
# %% exercise-3 wrong: event sourcing everywhere
decisions = dict.fromkeys(
    ("handbook", "help desk", "night shift", "claims", "payments", "stock"),
    ("event sourcing", choosing.REASONS),
)
# %% exercise-3 wrong: a check of the shift without keys
decisions = {
    "handbook": ("ephemeral", None),
    "help desk": ("checkpoint", choosing.SURVIVES),
    "night shift": ("checkpoint", choosing.ONCE),
    "claims": ("event sourcing", choosing.REASONS),
    "payments": ("hybrid", choosing.SHORT),
    "stock": ("event sourcing + consensus", choosing.SHARED),
}
# %% exercise-3 wrong: hybrid for shared state
decisions = {
    "handbook": ("ephemeral", None),
    "help desk": ("checkpoint", choosing.SURVIVES),
    "night shift": ("checkpoint + keys", choosing.ONCE),
    "claims": ("event sourcing", choosing.REASONS),
    "payments": ("hybrid", choosing.SHORT),
    "stock": ("hybrid", choosing.SHARED),
}
# %% exercise-3 wrong: the reason is another one
decisions = {
    "handbook": ("ephemeral", None),
    "help desk": ("checkpoint", choosing.ONCE),
    "night shift": ("checkpoint + keys", choosing.ONCE),
    "claims": ("event sourcing", choosing.REASONS),
    "payments": ("hybrid", choosing.SHORT),
    "stock": ("event sourcing + consensus", choosing.SHARED),
}
# %% exercise-3 wrong: the simpler pattern has it
decisions = {
    "handbook": ("ephemeral", None),
    "help desk": ("checkpoint", choosing.SURVIVES),
    "night shift": ("checkpoint + keys", choosing.ONCE),
    "claims": ("event sourcing", choosing.ONCE),
    "payments": ("hybrid", choosing.SHORT),
    "stock": ("event sourcing + consensus", choosing.SHARED),
}
# %% exercise-3 wrong: a reason where nothing is simpler
decisions = {"handbook": ("ephemeral", choosing.SURVIVES)}
# %% exercise-3 wrong: a case is missing
decisions = {"handbook": ("ephemeral", None)}
# %% exercise-3 wrong: a pattern of its own
decisions = {"handbook": ("spreadsheet", None)}

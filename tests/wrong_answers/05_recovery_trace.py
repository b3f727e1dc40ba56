# %% exercise-1 wrong: counts the sessions
def deaths(events):
    return len({event.session for event in events})
# %% exercise-1 wrong: the first event of the next session
def deaths(events):
    return [b.sequence for a, b in pairwise(events) if a.session != b.session]
# %% exercise-1 wrong: only the first death
def deaths(events):
    found = [a.sequence for a, b in pairwise(events) if a.session != b.session]
    return found[:1]
# %% exercise-2 wrong: resumed before it died
order = ["E", "B", "C", "D", "A"]
# %% exercise-2 wrong: checkpoint before the tool
order = ["E", "C", "B", "A", "D"]
# %% exercise-2 wrong: not a list of letters
order = 5
# %% exercise-3 wrong: only the text goes
def detail_of(call):
    return {name: call[name] for name in call if name != "text"}
# %% exercise-3 wrong: a deny-list
def detail_of(call):
    return {name: call[name] for name in call if name not in ("text", "result")}
# %% exercise-3 wrong: keeps too little
def detail_of(call):
    return {"key": call["key"]}

# %% exercise-1 wrong: only two deaths
points = ["draft_reply:tool_ran", "draft_reply:tool_ran"]
# %% exercise-1 wrong: four drafts
points = ["draft_reply:tool_ran", "draft_reply:tool_ran", "draft_reply:tool_ran"]
# %% exercise-1 wrong: the look-up is repeated too
points = ["lookup_runbook:tool_ran", "draft_reply:tool_ran", "draft_reply:tool_ran"]
# %% exercise-1 wrong: session-2 never comes there
points = ["draft_reply:tool_ran", "classify_priority:begin", "draft_reply:tool_ran"]
# %% exercise-1 wrong: a point without a name
points = ["before COMMIT #5", "draft_reply:tool_ran", "draft_reply:tool_ran"]
# %% exercise-2 wrong: a journal deleted before it is written
order = ["B", "F", "C", "E", "D", "A"]
# %% exercise-2 wrong: a letter is missing
order = ["C", "E", "D", "A", "B"]
# %% exercise-2 wrong: the page first
order = ["D", "A", "C", "E", "B", "F"]
# %% exercise-2 wrong: the journal is not safe
order = ["C", "D", "E", "A", "B", "F"]
# %% exercise-2 wrong: the journal goes before the page is safe
order = ["C", "E", "D", "B", "A", "F"]
# %% exercise-2 wrong: the deletion is not safe
order = ["C", "E", "D", "A", "F", "B"]
# %% exercise-3 wrong: fewest syncs at any price
def choose(rows, may_lose):
    return min(rows, key=lambda row: row["fsyncs"])["setting"]
# %% exercise-3 wrong: always the safest
def choose(rows, may_lose):
    fit = [r for r in rows if not r["corrupts"] and r["most lost"] == 0]
    return min(fit, key=lambda row: row["fsyncs"])["setting"]
# %% exercise-3 wrong: fails when nothing fits
def choose(rows, may_lose):
    fit = [r for r in rows if not r["corrupts"] and r["most lost"] <= may_lose]
    return min(fit, key=lambda row: row["fsyncs"])["setting"]
# %% exercise-3 wrong: the first that fits
def choose(rows, may_lose):
    for row in rows:
        if not row["corrupts"] and row["most lost"] <= may_lose:
            return row["setting"]
# %% exercise-3 wrong: exactly so much must be lost
def choose(rows, may_lose):
    fit = [r for r in rows if not r["corrupts"] and r["most lost"] == may_lose]
    best = min(fit, key=lambda row: row["fsyncs"], default=None)
    return best and best["setting"]

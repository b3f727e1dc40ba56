# %% exercise-1 wrong: random
def key_for(run_id, tool_name, attempt):
    return object().__repr__() + str(attempt)
# %% exercise-1 wrong: the run is missing
def key_for(run_id, tool_name, attempt):
    return tool_name
# %% exercise-1 wrong: the tool is missing
def key_for(run_id, tool_name, attempt):
    return run_id
# %% exercise-1 wrong: returns nothing
def key_for(run_id, tool_name, attempt):
    pass
# %% exercise-2 wrong: never looks
def once(connection, key, function):
    value = function()
    connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (key, to_json(value)))
    return value
# %% exercise-2 wrong: takes None for missing
def once(connection, key, function):
    row = connection.execute("SELECT value FROM results WHERE key = ?", (key,)).fetchone()
    value = from_json(row["value"]) if row else None
    if value is None:
        value = function()
        connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (key, to_json(value)))
    return value
# %% exercise-2 wrong: hides the error
def once(connection, key, function):
    row = connection.execute("SELECT value FROM results WHERE key = ?", (key,)).fetchone()
    if row:
        return from_json(row["value"])
    try:
        value = function()
    except Exception:
        return None
    connection.execute("INSERT INTO results VALUES (?, ?)", (key, to_json(value)))
    return value
# %% exercise-3 wrong: no second look
order = ["B", "D", "A", "C"]
# %% exercise-3 wrong: saves before the call
order = ["B", "D", "B", "C", "A"]
# %% exercise-3 wrong: no lock
order = ["B", "A", "C"]

# %% exercise-1 wrong: two blocks
def save_both(connection):
    with connection:
        connection.execute("UPDATE agent_runs SET version = version + 1")
    with connection:
        record_event(
            connection, run_id="run-T104", session="s", event_type="checkpoint_saved", action="a"
        )
# %% exercise-1 wrong: hides the error
def save_both(connection):
    try:
        with connection:
            connection.execute("UPDATE agent_runs SET version = version + 1")
            record_event(
                connection, run_id="run-T104", session="s", event_type="saved", action="a"
            )
    except Exception:
        pass
# %% exercise-1 wrong: saves nothing
def save_both(connection):
    with connection:
        record_event(
            connection, run_id="run-T104", session="s", event_type="saved", action="a"
        )
# %% exercise-2 wrong: no condition on the version
def save_if_current(connection, run_id, version, next_action):
    sql = "UPDATE agent_runs SET next_action = ?, version = version + 1 WHERE run_id = ?"
    return connection.execute(sql, (next_action, run_id)).rowcount == 1
# %% exercise-2 wrong: always True
def save_if_current(connection, run_id, version, next_action):
    sql = """UPDATE agent_runs SET next_action = ?, version = version + 1
        WHERE run_id = ? AND version = ?"""
    connection.execute(sql, (next_action, run_id, version))
    return True
# %% exercise-2 wrong: returns nothing
def save_if_current(connection, run_id, version, next_action):
    sql = """UPDATE agent_runs SET next_action = ?, version = version + 1
        WHERE run_id = ? AND version = ?"""
    connection.execute(sql, (next_action, run_id, version))
# %% exercise-3 wrong: always empty
def runs_of(connection, ticket_id):
    return []
# %% exercise-3 wrong: still text, other quotes
def runs_of(connection, ticket_id):
    sql = f"SELECT run_id FROM agent_runs WHERE ticket_id = '{ticket_id}'"
    return [row["run_id"] for row in connection.execute(sql)]

# %% exercise-1 wrong: before the tool
point = "lookup_runbook:begin"
# %% exercise-1 wrong: the result is saved
point = "lookup_runbook:before_checkpoint"
# %% exercise-1 wrong: no such point
point = "lookup_runbook:in_the_middle"
# %% exercise-2 wrong: only the first
def recover_all(connection, session, tools):
    run_ids = unfinished_runs(connection)
    run_to_end(connection, resume(connection, run_ids[0], session), session, tools)
    return run_ids
# %% exercise-2 wrong: loads without resuming
def recover_all(connection, session, tools):
    from lesson_lib.stores.sqlite import load_state

    run_ids = unfinished_runs(connection)
    for run_id in run_ids:
        run_to_end(connection, load_state(connection, run_id), session, tools)
    return run_ids
# %% exercise-2 wrong: reads the list after the work
def recover_all(connection, session, tools):
    for run_id in unfinished_runs(connection):
        run_to_end(connection, resume(connection, run_id, session), session, tools)
    return unfinished_runs(connection)
# %% exercise-3 wrong: result after the checkpoint
def step(load, call_tool, save_result, save_checkpoint):
    state = load()
    result = call_tool(state)
    save_checkpoint(state)
    save_result(result)
# %% exercise-3 wrong: the result is never saved
def step(load, call_tool, save_result, save_checkpoint):
    save_checkpoint(call_tool(load()))
# %% exercise-3 wrong: never saves the checkpoint
def step(load, call_tool, save_result, save_checkpoint):
    save_result(call_tool(load()))

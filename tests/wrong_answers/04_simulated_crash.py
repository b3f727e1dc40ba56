# %% exercise-1 wrong: before the tool
point = "lookup_runbook:begin"
# %% exercise-1 wrong: the result is saved
point = "lookup_runbook:before_checkpoint"
# %% exercise-1 wrong: no such point
point = "lookup_runbook:in_the_middle"
# %% exercise-2 wrong: only the first
def recover_all(store, tools):
    run_ids = store.unfinished_runs()
    ticket_agent.run_to_end(store, ticket_agent.resume(store, run_ids[0]), tools)
    return run_ids
# %% exercise-2 wrong: loads without resuming
def recover_all(store, tools):
    run_ids = store.unfinished_runs()
    for run_id in run_ids:
        ticket_agent.run_to_end(store, store.load_state(run_id), tools)
    return run_ids
# %% exercise-2 wrong: starts again from the beginning
def recover_all(store, tools):
    run_ids = store.unfinished_runs()
    for run_id in run_ids:
        ticket_agent.run_to_end(store, ticket_agent.start(store, run_id), tools)
    return run_ids
# %% exercise-2 wrong: reads the list after the work
def recover_all(store, tools):
    for run_id in store.unfinished_runs():
        ticket_agent.run_to_end(store, ticket_agent.resume(store, run_id), tools)
    return store.unfinished_runs()
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

# %% exercise-1 wrong: always repeats
def next_step(said, age, key_lives):
    return "confirm" if said == "found" else "repeat"
# %% exercise-1 wrong: takes silence for a no
def next_step(said, age, key_lives):
    if said == "found":
        return "confirm"
    if said == "in progress":
        return "wait"
    return "repeat" if 0 <= age < key_lives else "ask a person"
# %% exercise-1 wrong: forgets that keys are forgotten
def next_step(said, age, key_lives):
    if said == "found":
        return "confirm"
    return "repeat" if said == "not known" else "wait"
# %% exercise-1 wrong: trusts a clock that was set back
def next_step(said, age, key_lives):
    if said == "found":
        return "confirm"
    if said != "not known":
        return "wait"
    return "repeat" if age < key_lives else "ask a person"
# %% exercise-1 wrong: a word of its own
def next_step(said, age, key_lives):
    return "retry"
# %% exercise-2 wrong: the command first
def save_both(connection, checkpoint, command):
    with connection:
        command()
    with connection:
        checkpoint()
# %% exercise-2 wrong: still two blocks
def save_both(connection, checkpoint, command):
    with connection:
        checkpoint()
    with connection:
        command()
# %% exercise-2 wrong: no block at all
def save_both(connection, checkpoint, command):
    checkpoint()
    command()
# %% exercise-2 wrong: without the command
def save_both(connection, checkpoint, command):
    with connection:
        checkpoint()
# %% exercise-3 wrong: many attempts
policy = RetryPolicy(max_attempts=200, cap=timedelta(seconds=30))
# %% exercise-3 wrong: endless waits
policy = RetryPolicy(max_attempts=12, cap=timedelta(hours=1))
# %% exercise-3 wrong: waits long at once
policy = RetryPolicy(
    max_attempts=12, base=timedelta(minutes=5), cap=timedelta(minutes=5)
)
# %% exercise-3 wrong: more attempts only
policy = RetryPolicy(
    max_attempts=12, base=timedelta(seconds=1), cap=timedelta(minutes=5)
)
# %% exercise-3 wrong: no policy
policy = 12
# %% exercise-1 wrong: asks a person about a receipt when the clock was set back
def next_step(said, age, key_lives):
    if age < 0:
        return "ask a person"
    if said == "found":
        return "confirm"
    if said in ("in progress", "no answer"):
        return "wait"
    return "repeat" if age < key_lives else "ask a person"
# %% exercise-1 wrong: knows one service only
def next_step(said, age, key_lives):
    if said == "found":
        return "confirm"
    if said in ("in progress", "no answer"):
        return "wait"
    return "repeat" if 0 <= age < 23 else "ask a person"

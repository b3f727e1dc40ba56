# %% exercise-1 wrong: never looks
def save_fenced(connection, claim, state, step):
    with connection:
        return write_checkpoint(connection, state, step, session=claim.worker)
# %% exercise-1 wrong: two transactions
def save_fenced(connection, claim, state, step):
    with connection:
        claims.require_claim(connection, claim)
    with connection:
        return write_checkpoint(connection, state, step, session=claim.worker)
# %% exercise-1 wrong: looks outside of a transaction
def save_fenced(connection, claim, state, step):
    claims.require_claim(connection, claim)
    with connection:
        return write_checkpoint(connection, state, step, session=claim.worker)
# %% exercise-1 wrong: looks and does not save
def save_fenced(connection, claim, state, step):
    with connection:
        claims.require_claim(connection, claim)
    return state
# %% exercise-2 wrong: too late by a moment
def may_take_over(claim, now):
    return not now <= claim.expires_at <= now + claim.lease
# %% exercise-2 wrong: a new claim counts as over
def may_take_over(claim, now):
    return not now < claim.expires_at < now + claim.lease
# %% exercise-2 wrong: always
def may_take_over(claim, now):
    return now is not None and claim.expires_at != now + claim.lease
# %% exercise-2 wrong: twice the lease
def may_take_over(claim, now):
    return not now < claim.expires_at <= now + 2 * claim.lease
# %% exercise-3 wrong: the first one, urgent or not
def claim_urgent(connection, worker, lease):
    for run_id in unfinished_runs(connection):
        claim = claims.claim_run(connection, run_id, worker=worker, lease=lease)
        if claim is not None:
            return claim
    return None
# %% exercise-3 wrong: gives up when the first urgent one is held
def claim_urgent(connection, worker, lease):
    def is_normal(run_id):
        ticket = load_state(connection, run_id).context["ticket"]
        return classify(ticket["outage_minutes"], ticket["safety_impact"]) == "normal"

    first = min(unfinished_runs(connection), key=is_normal)
    return claims.claim_run(connection, first, worker=worker, lease=lease)
# %% exercise-3 wrong: returns the id
def claim_urgent(connection, worker, lease):
    def is_normal(run_id):
        ticket = load_state(connection, run_id).context["ticket"]
        return classify(ticket["outage_minutes"], ticket["safety_impact"]) == "normal"

    for run_id in sorted(unfinished_runs(connection), key=is_normal):
        if claims.claim_run(connection, run_id, worker=worker, lease=lease):
            return run_id
    return None
# %% exercise-3 wrong: urgent ones only
def claim_urgent(connection, worker, lease):
    for run_id in unfinished_runs(connection):
        ticket = load_state(connection, run_id).context["ticket"]
        if classify(ticket["outage_minutes"], ticket["safety_impact"]) == "urgent":
            claim = claims.claim_run(connection, run_id, worker=worker, lease=lease)
            if claim is not None:
                return claim
    return None
# %% exercise-1 wrong: saves first and looks afterwards
def save_fenced(connection, claim, state, step):
    with connection:
        new = write_checkpoint(connection, state, step, session=claim.worker)
    with connection:
        claims.require_claim(connection, claim)
    return new
# %% exercise-1 wrong: never commits
def save_fenced(connection, claim, state, step):
    connection.execute("BEGIN IMMEDIATE")
    claims.require_claim(connection, claim)
    return write_checkpoint(connection, state, step, session=claim.worker)
# %% exercise-2 wrong: knows one lease only
def may_take_over(claim, now):
    from datetime import timedelta

    left = claim.expires_at - now
    return left <= timedelta(0) or left > timedelta(seconds=30)
# %% exercise-3 wrong: a lease of its own
def claim_urgent(connection, worker, lease):
    def is_normal(run_id):
        ticket = load_state(connection, run_id).context["ticket"]
        return classify(ticket["outage_minutes"], ticket["safety_impact"]) == "normal"

    for run_id in sorted(unfinished_runs(connection), key=is_normal):
        claim = claims.claim_run(connection, run_id, worker=worker, lease=2 * lease)
        if claim is not None:
            return claim
    return None

"""What is true together with a checkpoint, and what is done with it later.

Riders, in the order in which they are given to a store or a step:

    SQLiteStore(connection, worker, (Redact(), Window(), Claimed(claim), Keep(schema)))
    Step("pay", found, None, riders=(PutCommand(key, "pay", request), Ask(name, text, choices)))

`Claimed` (claims), `PutCommand` (outbox) and `Ask` (questions) are here, `Redact`, `Window` and
`Keep` in `checkpoints`. Each needs its table: `create_claims`, `create_outbox`, and so on.

`intents` is for a call that the run waits for: stored before it is made, answered after. `outbox`
is for one that may come later: stored with the checkpoint, sent by `delivery`. `batches` commits
the checkpoints of many runs together.
"""

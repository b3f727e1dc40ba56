# %% exercise-1 wrong: everything into the checkpoint
conversation = (False, "dear", "progress")
plan = (False, "dear", "progress")
cursors = (True, "dear", "progress")
documents = (False, "dear", "progress")
confidence = (False, "dear", "progress")
effects = (False, "dear", "progress")
# %% exercise-1 wrong: embeddings in the checkpoint
conversation = (False, "dear", "record")
plan = (False, "dear", "progress")
cursors = (True, "dear", "progress")
documents = (False, "dear", "progress")
confidence = (False, "dear", "progress")
effects = (False, "acts again", "progress")
# %% exercise-1 wrong: the side effects are computed again
conversation = (False, "dear", "record")
plan = (False, "dear", "progress")
cursors = (True, "dear", "progress")
documents = (True, "cheap", "nothing")
confidence = (False, "dear", "progress")
effects = (True, "cheap", "progress")
# %% exercise-1 wrong: the plan is thrown away
conversation = (False, "dear", "record")
plan = (True, "cheap", "progress")
cursors = (True, "dear", "progress")
documents = (True, "cheap", "nothing")
confidence = (False, "dear", "progress")
effects = (False, "acts again", "progress")
# %% exercise-1 wrong: the confidence goes to the history
conversation = (False, "dear", "record")
plan = (False, "dear", "progress")
cursors = (True, "dear", "progress")
documents = (True, "cheap", "nothing")
confidence = (False, "dear", "record")
effects = (False, "acts again", "progress")
# %% exercise-1 wrong: every page is read again
conversation = (False, "dear", "record")
plan = (False, "dear", "progress")
cursors = (True, "cheap", "progress")
documents = (True, "cheap", "nothing")
confidence = (False, "dear", "progress")
effects = (False, "acts again", "progress")
# %% exercise-1 wrong: the cursors act again
conversation = (False, "dear", "record")
plan = (False, "dear", "progress")
cursors = (False, "acts again", "progress")
documents = (True, "cheap", "nothing")
confidence = (False, "dear", "progress")
effects = (False, "acts again", "progress")
# %% exercise-1 wrong: embeddings are kept for ever
conversation = (False, "dear", "record")
plan = (False, "dear", "progress")
cursors = (True, "dear", "progress")
documents = (False, "dear", "record")
confidence = (False, "dear", "progress")
effects = (False, "acts again", "progress")
# %% exercise-1 wrong: a word of its own
conversation = (False, "dear", "record")
plan = (True, "free", "nothing")
cursors = (True, "dear", "progress")
documents = (True, "cheap", "nothing")
confidence = (False, "dear", "progress")
effects = (False, "acts again", "progress")
# %% exercise-1 wrong: one word for each kind
conversation = "history"
plan = "checkpoint"
cursors = "checkpoint"
documents = "nowhere"
confidence = "checkpoint"
effects = "effects"
# %% exercise-2 wrong: changes the caller's dict
def to_next_version(context):
    draft = context.pop("draft", None)
    context.pop("confidence", None)
    return context | {"drafts": [] if draft is None else [draft]}
# %% exercise-2 wrong: keeps the removed field
def to_next_version(context):
    new = dict(context)
    new["drafts"] = [new.pop("draft")] if "draft" in new else []
    return new
# %% exercise-2 wrong: no default for a missing draft
def to_next_version(context):
    new = dict(context)
    new["drafts"] = [new.pop("draft", None)]
    new.pop("confidence", None)
    return new
# %% exercise-2 wrong: an empty draft counts as none
def to_next_version(context):
    new = dict(context)
    draft = new.pop("draft", None)
    new.pop("confidence", None)
    return new | {"drafts": [draft] if draft else []}
# %% exercise-2 wrong: drops what it does not know
def to_next_version(context):
    drafts = [context["draft"]] if "draft" in context else []
    return {"ticket": context["ticket"], "drafts": drafts}
# %% exercise-2 wrong: takes it that every field is there
def to_next_version(context):
    new = dict(context)
    del new["confidence"]
    return new | {"drafts": [new.pop("draft")]}
# %% exercise-2 wrong: loses the old text
def to_next_version(context):
    new = dict(context)
    new.pop("confidence", None)
    new.pop("draft", None)
    return new | {"drafts": []}
# %% exercise-3 wrong: forgets the run
def checksum(stored):
    text = f"{stored.version}|{stored.schema_version}|{stored.compression}|"
    return sha256(text.encode() + stored.body).hexdigest()
# %% exercise-3 wrong: nothing between the values
def checksum(stored):
    text = f"{stored.run_id}{stored.version}{stored.schema_version}"
    text += stored.compression
    return sha256(text.encode() + stored.body).hexdigest()
# %% exercise-3 wrong: includes the checksum itself
def checksum(stored):
    return sha256(repr(stored).encode()).hexdigest()
# %% exercise-3 wrong: forgets how the body is to be read
def checksum(stored):
    text = f"{stored.run_id}|{stored.version}|"
    return sha256(text.encode() + stored.body).hexdigest()
# %% exercise-3 wrong: another process has another salt
def checksum(stored):
    row = (stored.run_id, stored.version, stored.schema_version)
    return str(hash((*row, stored.compression, stored.body)))

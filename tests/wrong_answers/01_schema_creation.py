# %% exercise-1 wrong: one note per run only
notes_sql = """CREATE TABLE run_notes (
    run_id TEXT NOT NULL PRIMARY KEY REFERENCES agent_runs (run_id),
    number INTEGER NOT NULL, note TEXT NOT NULL)"""
# %% exercise-1 wrong: no reference
notes_sql = """CREATE TABLE run_notes (
    run_id TEXT NOT NULL, number INTEGER NOT NULL CHECK (number >= 1), note TEXT NOT NULL,
    PRIMARY KEY (run_id, number))"""
# %% exercise-1 wrong: NULL allowed
notes_sql = """CREATE TABLE run_notes (
    run_id TEXT NOT NULL REFERENCES agent_runs, number INTEGER NOT NULL CHECK (number >= 1),
    note TEXT, PRIMARY KEY (run_id, number))"""
# %% exercise-1 wrong: no SQL at all
notes_sql = "a table of notes, please"
# %% exercise-2 wrong: the pragma left out
def open_checked(path):
    return sqlite3.connect(path, autocommit=True)
# %% exercise-2 wrong: a commit first does not help
def open_checked(path):
    connection = sqlite3.connect(path, autocommit=False)
    connection.commit()
    connection.execute("PRAGMA foreign_keys = ON")
    return connection
# %% exercise-2 wrong: returns nothing
def open_checked(path):
    sqlite3.connect(path, autocommit=True).close()
# %% exercise-3 wrong: event before run
order = ["B", "A", "D", "C"]
# %% exercise-3 wrong: tables last
order = ["D", "A", "C", "B"]
# %% exercise-3 wrong: a letter missing
order = ["B", "D"]

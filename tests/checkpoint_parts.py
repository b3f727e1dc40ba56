"""What tests of checkpoints make up: JSON values, and contexts that fit the schema or do not."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

TICKET = {"area": "sorting", "issue": "stopped", "outage_minutes": 45, "safety_impact": False}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(texts, values, max_size=4)
OF_TYPE: dict[type, st.SearchStrategy[Any]] = {
    str: texts,
    list: st.lists(values, max_size=3),
    dict: objects,
}
tickets = st.fixed_dictionaries(
    {"area": texts, "issue": texts, "outage_minutes": st.integers(0, 999)}
    | {"safety_impact": st.booleans()}
)
runbooks = st.fixed_dictionaries({"code": texts, "audience": texts, "step": texts})
fitting = st.fixed_dictionaries(
    {"ticket": tickets},
    optional={"runbook": runbooks}
    | {n: OF_TYPE[t] for n, t in TICKET_SCHEMA.fields.items() if n not in ("ticket", "runbook")},
)
fields = texts | st.sampled_from(
    [*TICKET_SCHEMA.fields, "area", "safety", "prompt", "runbook_step"]
)
contexts = fitting | st.dictionaries(fields, values | tickets | runbooks, max_size=6)

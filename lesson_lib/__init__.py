"""The companion package of the lessons: an agent that keeps its state and goes on after it dies.

Read the modules in this order: errors, json_text, model, ledger, tickets, schema.sql,
stores.sqlite, agent, crash, show, trace, checks. Then, one folder for each later
lesson: crashes (06), workers (07), payments (08), checkpoints (09), recovery (10), patterns (11).
Importing the package itself loads none of them.
"""

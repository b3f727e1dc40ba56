"""The companion package of the lessons: an agent that keeps its state and goes on after it dies.

Read the modules in this order: errors, json_text, model, ledger, tickets, schema.sql,
stores.sqlite, agent, crash, show, trace, checks. Then, one folder for each lesson of part two:
crashes (06), workers (07), payments (08). Importing the package itself loads none of them.
"""

"""The companion package of the lessons: an agent that keeps its state and goes on after it dies.

Read the modules in this order: errors, json_text, model, ledger, tickets, schema.sql,
stores.sqlite, agent, crash, show, trace, checks. Importing the package itself loads none of them.
"""

"""The companion package of the lessons: an agent that keeps its state and goes on after it dies.

Read the modules in this order: model, json_text, ledger, tickets, schema.sql, stores.sqlite, agent,
crash, trace. Importing the package itself loads none of them.
"""

"""Studies with people: assignments, answers and agreement.

`answer_store.py` keeps the answers of all kinds of studies; the pages for people are in `spaces/`. Nothing here imports
a page, an explainer or a network.
"""

"""Studies with people: who is asked what, what they answered, and how far they agree.

`store.py` keeps the answers, of all kinds of studies; the pages that ask are in `spaces/`. Nothing here imports a page,
an explainer or a network.
"""

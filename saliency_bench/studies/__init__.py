"""Studies with people: assignments, answers and agreement.

`answer_store.py` stores the answers of all types of studies. The web pages for participants are in `spaces/`. This
package does not import pages, explainers or networks.
"""

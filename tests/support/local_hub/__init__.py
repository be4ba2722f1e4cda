"""A Hub on this machine, for tests: real HTTP, real revisions and pull requests, and faults to order.

Clients talk to it unmodified, by `HF_ENDPOINT` (see `LocalHub.env`) or `HfApi(endpoint=hub.url, token=...)`.
"""

from local_hub.hub import FOUNDER, READER, VISITOR, LocalHub, User

__all__ = ["FOUNDER", "READER", "VISITOR", "LocalHub", "User"]

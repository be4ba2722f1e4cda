"""Provide a local Hub for tests, with real HTTP, revisions and pull requests, and configurable faults.

Unmodified clients connect with `HF_ENDPOINT` (see `LocalHub.env`) or `HfApi(endpoint=hub.url, token=...)`.
"""

from local_hub.hub import FOUNDER, READER, VISITOR, LocalHub, User

__all__ = ["FOUNDER", "READER", "VISITOR", "LocalHub", "User"]

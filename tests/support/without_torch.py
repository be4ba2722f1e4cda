"""Hide torch and packages that need it, as if they were not installed, if this module is imported first."""

import sys

ABSENT = ("accelerate", "evaluate", "safetensors", "timm", "torch", "torchvision", "transformers")


class Without:
    """Module finder that hides these modules."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = map(Without, sys.meta_path)

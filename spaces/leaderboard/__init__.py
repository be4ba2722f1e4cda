"""The leaderboard: the page of a board of results, as a Space and on a laptop."""

import atexit
import os
import shutil
from tempfile import mkdtemp


def keep_files_private() -> None:
    """Give Gradio a folder that no other user of this machine can make or open; by default it is /tmp/gradio.

    Gradio reads the variable GRADIO_TEMP_DIR when it is imported. The folder is removed when the process ends; one that
    the variable named before is left as it is.
    """
    if "GRADIO_TEMP_DIR" not in os.environ:
        folder = os.environ["GRADIO_TEMP_DIR"] = mkdtemp(prefix="saliency-bench-gradio-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


keep_files_private()

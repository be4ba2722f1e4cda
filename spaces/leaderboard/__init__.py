"""The leaderboard: the web page that shows a board of results, on a Space or on a local machine."""

import atexit
import os
import shutil
from tempfile import mkdtemp


def keep_files_private() -> None:
    """Set a private temporary folder for Gradio. The default, /tmp/gradio, may belong to another user.

    Gradio reads the variable GRADIO_TEMP_DIR when it is imported. If the variable is already set, it is not changed.
    The new folder is deleted when the process ends.
    """
    if "GRADIO_TEMP_DIR" not in os.environ:
        folder = os.environ["GRADIO_TEMP_DIR"] = mkdtemp(prefix="saliency-bench-gradio-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


keep_files_private()

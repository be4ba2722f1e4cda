"""The leaderboard: the page of a board of results, as a Space and on a laptop."""

import atexit
import os
import shutil
from tempfile import mkdtemp


def keep_files_private() -> None:
    """Set a private temporary folder for Gradio instead of /tmp/gradio, which another user may own.

    Gradio reads the variable GRADIO_TEMP_DIR when it is imported. A variable that is already set does not change. The
    new folder is removed when the process ends.
    """
    if "GRADIO_TEMP_DIR" not in os.environ:
        folder = os.environ["GRADIO_TEMP_DIR"] = mkdtemp(prefix="saliency-bench-gradio-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


keep_files_private()

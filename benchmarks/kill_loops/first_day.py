"""Run `launch` for a namespace in a child process, with a local Hub."""

import os
import sys
import time


def launch(url: str, argv: list[str], log: str, token: str, stranger: bool = False) -> None:
    """Run a command in a child with the Hub at this URL and with short sleeps.

    The check of what other users can load is skipped unless `stranger` is set.
    """
    import datasets.config
    import huggingface_hub.constants as constants

    address = url + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {"ENDPOINT": url, "HUGGINGFACE_CO_URL_TEMPLATE": address, "HF_HUB_OFFLINE": False,
                        "HF_HUB_DISABLE_XET": True, "HF_HUB_DISABLE_TELEMETRY": True}.items():  # fmt: skip
        setattr(constants, name, value)
    datasets.config.HF_ENDPOINT, datasets.config.HF_HUB_OFFLINE = url, False
    os.environ |= {"HF_TOKEN": token, "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    from saliency_bench.cli import main
    from saliency_bench.push_scripts import _stranger

    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.01))  # type: ignore[assignment]
    if not stranger:
        _stranger.check_as_stranger = lambda what: []  # type: ignore[assignment]
    if code := main(argv):
        sys.exit(code)

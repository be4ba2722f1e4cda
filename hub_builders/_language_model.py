"""Send yes-or-no questions to a language model through `huggingface_hub.InferenceClient`, and store all replies.

The file of replies has one JSON object per line: model, prompt (a hash of its wording), question, answer, reply. If the
file contains a question-answer pair, the pair is not sent again, so a rebuild needs neither a token nor a network
connection.
"""

import json
import os
import re
import time
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlparse

from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError
from saliency_bench.utils.progress import bar

# The paper's prompt, word for word, because the classes of the dataset depend on its wording.
PROMPT = (
    "Can the following question-answer pair be restructured into a classification problem? Question: ‘{question}’ "
    "Answer: ‘{answer}’. If yes, respond with ‘yes’. If no, respond with ‘no’."
)
WORDING = blake2b(PROMPT.encode(), digest_size=8).hexdigest()
SECONDS = 60.0  # timeout of a request
WAITS = (2.0, 8.0, 30.0)  # seconds before each retry if the service is busy
BUSY = (429, 500, 502, 503, 504)
OPENAI = "https://api.openai.com/v1"
Pair = tuple[str, str]  # question, answer


@dataclass(frozen=True)
class Service:
    """The service that runs the language model.

    Attributes:
        model: Name of an OpenAI model, such as gpt-4o-mini, or a Hub id.
        provider: Inference provider for a model on the Hub.
        server: URL of a chat-completion server to use instead, or "".
        token: Name of the environment variable that contains the token, or "" for the default variable.
    """

    model: str
    provider: str = "auto"
    server: str = ""
    token: str = ""

    @property
    def of_openai(self) -> bool:
        """Return whether OpenAI runs the model."""
        return re.match(r"(chat)?gpt-|o\d", self.model) is not None

    @property
    def address(self) -> str:
        """URL of the server, or "" for the inference providers of the Hub."""
        return self.server or (OPENAI if self.of_openai else "")


def check_token(name: str) -> None:
    """Raise UserError if the string is not the name of an environment variable.

    The message does not contain the string, because it may be a token.
    """
    if name and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
        raise UserError(
            "the value of the option `token` is not the name of an environment variable; pass the name of the variable "
            "that contains the token, such as OPENAI_API_KEY, not the token itself"
        )


def accepted(pairs: list[Pair], file: Path, service: Service, log: BuildLog) -> dict[Pair, bool]:
    """Return {pair: whether the model accepts the pair}. Pairs without a stored reply are sent to the model.

    The replies are published with the dataset as answers.jsonl.

    Raises:
        UserError: Replies are missing and there is no token, or the service fails. Replies received so far are kept.
    """
    known = read(file, service.model, log)
    missing = sorted(set(pairs) - set(known))
    if missing:
        client = _client(file, service, len(missing))
        for pair in bar(missing, desc="querying the language model", unit=" pairs", leave=False):
            known[pair] = _ask(client, service.model, pair)
            _append(file, _entry(service.model, pair, known[pair]))
    wanted = sorted(set(pairs))
    log.files["answers.jsonl"] = "".join(_entry(service.model, pair, known[pair]) for pair in wanted).encode()
    return {pair: _yes(pair, known[pair], log) for pair in wanted}


def _entry(model: str, pair: Pair, reply: str) -> str:
    line = {"model": model, "prompt": WORDING, "question": pair[0], "answer": pair[1], "reply": reply}
    return json.dumps(line, ensure_ascii=False) + "\n"


def read(file: Path, model: str, log: BuildLog) -> dict[Pair, str]:
    """Return {pair: reply} for this model and this prompt from a file. Lines that are not replies are logged."""
    replies: dict[Pair, str] = {}
    if not file.is_file():
        return replies
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            entry = json.loads(line)
            pair, reply = (entry["question"], entry["answer"]), entry["reply"]
            if not all(isinstance(text, str) for text in (*pair, reply)):
                raise TypeError
            if (entry.get("model"), entry.get("prompt")) == (model, WORDING):
                replies[pair] = reply
        except (ValueError, KeyError, TypeError, RecursionError):
            log.remark(file.name, f"line {number} is not a reply from a language model and is skipped")
    return replies


def _client(file: Path, service: Service, count: int):
    import huggingface_hub

    address, token = service.address, _token(service)
    if token is None and (not service.server or service.token):
        wanted = service.token or ("OPENAI_API_KEY" if service.of_openai else "HF_TOKEN")
        raise UserError(
            f"{count} replies from {service.model} are missing from {file}, and there is no token to request them; set "
            f"{wanted}{'' if service.of_openai else ' or log in with `hf auth login`'}, add the replies to this file, "
            "use your own server with --server, or keep every pair with --no-ask"
        )
    if address:
        _check_address(address, token)
        return huggingface_hub.InferenceClient(base_url=address, token=token or "none", timeout=SECONDS)
    try:
        return huggingface_hub.InferenceClient(
            service.model,
            provider=service.provider,  # type: ignore[arg-type]
            token=token,
            timeout=SECONDS,
        )
    except ValueError as error:
        raise UserError(f"provider={service.provider} is unknown to huggingface_hub: {error}") from error


def _token(service: Service) -> str | None:
    """Return the token to send, or None for a server that must not receive a token.

    If no variable is named, OpenAI models get OpenAI's token, and Hugging Face's inference providers and Inference
    Endpoints get Hugging Face's token.
    """
    import huggingface_hub

    if service.token:
        return os.environ.get(service.token) or None
    if service.of_openai:
        return os.environ.get("OPENAI_API_KEY") or None
    address = urlparse(service.server)
    endpoint = address.scheme == "https" and (address.hostname or "").endswith(".huggingface.cloud")
    return huggingface_hub.get_token() if endpoint or not service.server else None


def _check_address(address: str, token: str | None) -> None:
    """Raise UserError if a URL is invalid, or if a token would be sent to it unencrypted."""
    try:
        parts = urlparse(address)
        scheme, host = parts.scheme, parts.hostname
    except ValueError:
        scheme, host = "", None
    if scheme not in ("http", "https") or not host:
        raise UserError(f"server={address} is not a URL; pass a URL such as http://localhost:8000/v1")
    if token and scheme == "http" and host not in ("localhost", "127.0.0.1", "::1"):
        raise UserError(f"server={address} would receive the token unencrypted; use a URL that begins with https")


def _ask(client, model: str, pair: Pair) -> str:
    messages = [{"role": "user", "content": PROMPT.format(question=pair[0], answer=pair[1])}]
    waits, token = iter(WAITS), getattr(client, "token", None) or "\0"
    while True:
        try:
            response = client.chat_completion(messages, model=model, max_tokens=8, temperature=0.0, seed=0)
            if reply := str(response.choices[0].message.content or "").strip():
                return reply.replace(token, "[token]")
            raise ValueError("the reply is empty; reasoning models are not supported, so use a different model")
        except Exception as error:  # the provider and the HTTP library define their own error classes
            wait = next(waits, None)
            if wait is None or not _busy(error):
                text = " ".join(str(error).split()) or type(error).__name__
                hidden = text.replace(token, "[token]")
                raise UserError(
                    f"the language model did not answer: {hidden[:300]}; run the build again (the replies received "
                    "so far are kept)"
                ) from (error if hidden == text else None)
            time.sleep(wait)


def _busy(error: Exception) -> bool:
    from huggingface_hub import InferenceTimeoutError

    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(error, InferenceTimeoutError) or status in BUSY


def _append(file: Path, line: str) -> None:
    try:
        with file.open("a+b") as lines:
            lines.seek(max(lines.seek(0, os.SEEK_END) - 1, 0))
            cut_off = lines.read(1) not in (b"", b"\n")  # the last line is incomplete because the process was killed
            lines.write((b"\n" if cut_off else b"") + line.encode())
    except OSError as error:
        raise UserError(
            f"cannot write the replies to {file}: {error.strerror}; choose a different file with --answers"
        ) from error


def _yes(pair: Pair, reply: str, log: BuildLog) -> bool:
    """Return whether a reply means yes. A reply that is neither yes nor no is logged."""
    word = "".join(c for c in reply.casefold().partition("\n")[0] if c.isalpha() or c == " ").split()
    if word[:1] not in (["yes"], ["no"]):
        log.remark(pair[1], f"the language model replied {reply[:60]!r}, which is treated as 'no'")
    return word[:1] == ["yes"]

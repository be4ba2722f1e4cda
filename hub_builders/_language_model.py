"""Asks a language model yes-or-no questions through `huggingface_hub.InferenceClient`; every answer is kept in a file.

The file has one JSON object a line: model, prompt (a hash of its wording), question, answer, reply. A pair that is in
it is not asked again, so a rebuild needs neither a token nor the network.
"""

import json
import time
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlparse

from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError
from saliency_bench.utils.progress import bar

PROMPT = """You help to build an image classification dataset from questions and answers about pictures.
Decide whether this pair can be turned into one sample of it: is the answer the name of a class, such as an action, that
a classifier could choose for a picture from a fixed list?

Question: {question}
Answer: {answer}

Reply with one word, yes or no."""
WORDING = blake2b(PROMPT.encode(), digest_size=8).hexdigest()
SECONDS = 60.0  # for one answer
WAITS = (2.0, 8.0, 30.0)  # seconds before another try, where the service is busy
BUSY = (429, 500, 502, 503, 504)
Pair = tuple[str, str]  # question, answer


def accepted(pairs: list[Pair], file: Path, model: str, provider: str, server: str, log: BuildLog) -> dict[Pair, bool]:
    """Which pairs the model accepts; what it was not asked before, it is asked now, one after the other.

    server: address of a chat-completion server to ask instead of the provider; it gets no token of Hugging Face unless
    it is one of its Inference Endpoints
    Raises: UserError without answers and token, or if the service fails; the answers until then are kept.
    """
    known = read(file, model, log)
    missing = sorted(set(pairs) - set(known))
    if missing:
        client = _client(file, model, provider, server, len(missing))
        for pair in bar(missing, desc="asking the language model", unit=" pairs", leave=False):
            known[pair] = _ask(client, model, pair)
            _append(
                file, {"model": model, "prompt": WORDING, "question": pair[0], "answer": pair[1], "reply": known[pair]}
            )
    return {pair: _yes(pair, known[pair], log) for pair in sorted(set(pairs))}


def read(file: Path, model: str, log: BuildLog) -> dict[Pair, str]:
    """{pair: reply} of this model to this wording; a line that is no answer is a remark."""
    found: dict[Pair, str] = {}
    if not file.is_file():
        return found
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            entry = json.loads(line)
            pair, reply = (entry["question"], entry["answer"]), entry["reply"]
            if not all(isinstance(text, str) for text in (*pair, reply)):
                raise TypeError
            if (entry.get("model"), entry.get("prompt")) == (model, WORDING):
                found[pair] = reply
        except (ValueError, KeyError, TypeError, RecursionError):
            log.remark(file.name, f"line {number} is no answer and is passed over")
    return found


def _client(file: Path, model: str, provider: str, server: str, count: int):
    import huggingface_hub

    if server:
        address = urlparse(server)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise UserError(f"server={server} is not an address; give one such as http://localhost:8000/v1")
        token = None if address.scheme == "https" and address.hostname.endswith(".huggingface.cloud") else "none"
        return huggingface_hub.InferenceClient(base_url=server, token=token, timeout=SECONDS)
    if huggingface_hub.get_token() is None:
        raise UserError(
            f"{count} answers of {model} are not in {file} and there is no token to ask for them; log in with "
            "`hf auth login`, set HF_TOKEN, or put the file of answers there (or ask a server of your own: --server, "
            "or keep every pair: --no-ask)"
        )
    try:
        return huggingface_hub.InferenceClient(model, provider=provider, timeout=SECONDS)  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"provider={provider} is unknown to huggingface_hub: {error}") from error


def _ask(client, model: str, pair: Pair) -> str:
    asked = [{"role": "user", "content": PROMPT.format(question=pair[0], answer=pair[1])}]
    waits = iter(WAITS)
    while True:
        try:
            response = client.chat_completion(asked, model=model, max_tokens=8, temperature=0.0, seed=0)
            if reply := str(response.choices[0].message.content or "").strip():
                return reply
            raise ValueError("its reply is empty; a model that thinks before it answers cannot be used")
        except Exception as error:  # the classes of errors belong to the provider and the HTTP library
            wait = next(waits, None)
            if wait is None or not _busy(error):
                text = " ".join(str(error).split()) or type(error).__name__
                raise UserError(
                    f"the language model did not answer: {text[:300]}; start again, the answers so far are kept"
                ) from error
            time.sleep(wait)


def _busy(error: Exception) -> bool:
    from huggingface_hub import InferenceTimeoutError

    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(error, InferenceTimeoutError) or status in BUSY


def _append(file: Path, answer: dict) -> None:
    try:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(answer, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError(
            f"cannot write the answers to {file}: {error.strerror}; name another file: --answers"
        ) from error


def _yes(pair: Pair, reply: str, log: BuildLog) -> bool:
    word = "".join(c for c in reply.casefold().partition("\n")[0] if c.isalpha() or c == " ").split()
    if word[:1] not in (["yes"], ["no"]):
        log.remark(pair[1], f"the language model said {reply[:60]!r}, which counts as no")
    return word[:1] == ["yes"]

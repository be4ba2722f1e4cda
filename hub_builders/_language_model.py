"""Asks a language model yes-or-no questions through `huggingface_hub.InferenceClient`; every answer is kept in a file.

The file has one JSON object a line: model, prompt (a hash of its wording), question, answer, reply. A pair that is in
it is not asked again, so a rebuild needs neither a token nor the network.
"""

import json
from hashlib import blake2b
from pathlib import Path

from saliency_bench.errors import UserError
from saliency_bench.jobs import Report
from saliency_bench.progress import bar

PROMPT = """You help to build an image classification dataset from questions and answers about pictures.
Decide whether this pair can be turned into one sample of it: is the answer the name of a class, such as an action, that
a classifier could choose for a picture from a fixed list?

Question: {question}
Answer: {answer}

Reply with one word, yes or no."""
WORDING = blake2b(PROMPT.encode(), digest_size=8).hexdigest()
Pair = tuple[str, str]  # question, answer


def accepted(pairs: list[Pair], file: Path, model: str, provider: str, report: Report) -> dict[Pair, bool]:
    """Which pairs the model accepts; what it was not asked before, it is asked now, one after the other.

    Errors: UserError without answers and token, or if the service fails; the answers until then are kept.
    """
    known = read(file, model, report)
    missing = sorted(set(pairs) - set(known))
    if missing:
        client = _client(file, model, provider, len(missing))
        for pair in bar(missing, desc="asking the language model", unit=" pairs", leave=False):
            known[pair] = _ask(client, pair)
            _append(
                file, {"model": model, "prompt": WORDING, "question": pair[0], "answer": pair[1], "reply": known[pair]}
            )
    return {pair: _yes(pair, known[pair], report) for pair in sorted(set(pairs))}


def read(file: Path, model: str, report: Report) -> dict[Pair, str]:
    """{pair: reply} of this model to this wording; a line that is no answer is a remark."""
    found: dict[Pair, str] = {}
    if not file.is_file():
        return found
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            said = json.loads(line)
            pair, reply = (said["question"], said["answer"]), said["reply"]
            if not all(isinstance(text, str) for text in (*pair, reply)):
                raise TypeError
            if (said.get("model"), said.get("prompt")) == (model, WORDING):
                found[pair] = reply
        except (ValueError, KeyError, TypeError, RecursionError):
            report.remark(file.name, f"line {number} is no answer and is passed over")
    return found


def _client(file: Path, model: str, provider: str, count: int):
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        raise UserError(
            f"{count} answers of {model} are not in {file} and there is no token to ask for them; log in with "
            "`hf auth login`, set HF_TOKEN, or put the file of answers there (or keep every pair: --no-ask)"
        )
    try:
        return huggingface_hub.InferenceClient(model=model, provider=provider)  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"provider={provider} is unknown to huggingface_hub: {error}") from error


def _ask(client, pair: Pair) -> str:
    prompt = PROMPT.format(question=pair[0], answer=pair[1])
    try:
        said = client.chat_completion([{"role": "user", "content": prompt}], max_tokens=8, temperature=0.0, seed=0)
        return str(said.choices[0].message.content or "").strip()
    except Exception as error:  # the classes of errors belong to the provider and the HTTP library
        text = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"the language model did not answer: {text}; start again, the answers so far are kept"
        ) from error


def _append(file: Path, answer: dict) -> None:
    try:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(answer, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError(
            f"cannot write the answers to {file}: {error.strerror}; name another file: --answers"
        ) from error


def _yes(pair: Pair, reply: str, report: Report) -> bool:
    word = "".join(c for c in reply.casefold().partition("\n")[0] if c.isalpha() or c == " ").split()
    if word[:1] not in (["yes"], ["no"]):
        report.remark(pair[1], f"the language model said {reply[:60]!r}, which counts as no")
    return word[:1] == ["yes"]

import { askConsent } from "./introduction.js";

// Talking to the server of a study. An answer is kept in the browser until the server has confirmed it, and sent again
// after a lost connection or a restart; the server stores it once, however often it comes.

export const randomId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(24)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// localStorage, or memory where the browser forbids it (private windows, frames).
const memory = new Map();
export const kept = {
  get(name) {
    try {
      return localStorage.getItem("saliency-bench:" + name) ?? memory.get(name) ?? null;
    } catch {
      return memory.get(name) ?? null;
    }
  },
  set(name, text) {
    try {
      localStorage.setItem("saliency-bench:" + name, text);
      memory.delete(name);
      return true;
    } catch {
      memory.set(name, text); // lost when the tab is closed
      return false;
    }
  },
  names(start) {
    const found = [...memory.keys()];
    try {
      const prefix = "saliency-bench:";
      for (let i = 0; i < localStorage.length; i++) {
        if (localStorage.key(i).startsWith(prefix)) found.push(localStorage.key(i).slice(prefix.length));
      }
    } catch {
      // memory is all there is
    }
    return found.filter((name) => name.startsWith(start));
  },
  remove(name) {
    memory.delete(name);
    try {
      localStorage.removeItem("saliency-bench:" + name);
    } catch {
      // it was in memory
    }
  },
};

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// Of a server in front of ours, which says nothing of its own.
const refusals = { 413: "the server takes no answers of this size; tell whoever runs the study", 502: "the study is not running", 504: "the study is too slow" };

let agreed = ""; // the id of the consent that was agreed to on this page

// Whatever is asked of the server, it asks for consent first; the same request is then repeated.
export async function call(path, options = {}) {
  for (;;) {
    try {
      return await callOnce(path, options);
    } catch (error) {
      if (error.status !== 428) throw error;
      agreed = await askConsent((await callOnce("api/about")).consent);
    }
  }
}

async function callOnce(path, { key = "", body = null, as = "json" } = {}) {
  const options = { headers: { "X-Key": key, "X-Consent": agreed }, signal: AbortSignal.timeout(30000) };
  if (body) {
    options.method = "POST";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  if (!answer.ok) {
    const text = await answer.json().then((found) => found.error, () => refusals[answer.status] ?? "the server does not answer");
    throw new Refused(answer.status, text);
  }
  return as === "blob" ? answer.blob() : as === "bytes" ? answer.arrayBuffer() : answer.json();
}

// Milliseconds until the next try: longer each time, and never the same for two people, so that a server that comes
// back is not asked by all of them at once.
export const backoff = (tries) => Math.min(30000, 1000 * 2 ** tries) * (0.5 + Math.random());

// Whether the same request may succeed later: the server or the network is at fault, not the request.
export const passing = (error) =>
  !(error instanceof Refused) || error.status >= 500 || [401, 408, 421, 425, 429].includes(error.status);

// The key of this browser's person: that of the address (#key=...), or from before. An invitation (#invite=...) is a
// request to join, which always makes the same person. The parameters of the address (?PROLIFIC_PID=...) stay.
export function keyOfAddress(prefix) {
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (fragment.get("key")) kept.set(prefix + "key", fragment.get("key"));
  if (fragment.get("invite")) {
    kept.set(prefix + "join", fragment.get("invite"));
    kept.remove(prefix + "key");
  }
  if (fragment.size) history.replaceState(null, "", location.pathname + location.search);
  return kept.get(prefix + "key");
}

// What joins the study; a repeated request is the same person.
export function joining(prefix) {
  const request = kept.get(prefix + "join") ?? randomId();
  kept.set(prefix + "join", request);
  return { request, parameters: Object.fromEntries(new URLSearchParams(location.search)) };
}

// What whoever has finished takes along: a code, or a link back to where they came from.
export function showCompletion(element, completion) {
  const parts = [];
  if (completion?.code) {
    const code = document.createElement("output");
    code.textContent = completion.code;
    parts.push("Your completion code: ", code);
  }
  if (completion?.url) {
    const link = document.createElement("a");
    link.href = completion.url;
    link.className = "primary";
    link.textContent = "Finish";
    parts.push(link);
  }
  element.replaceChildren(...parts);
  element.hidden = !parts.length;
}

// [title, text] that whoever is given nothing reads; null where the study goes on.
export const stopped = (state) =>
  ({
    paused: ["Paused", "The study is paused. Your answers are stored; come back later."],
    closed: ["Thank you", "The study has ended. Your answers are stored."],
    excluded: ["Thank you", "There is nothing more for you in this study. Your answers are stored."],
  })[state.stopped] ?? null;

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// Where one click answers, the second of a double click must not answer the next question, which nobody has seen yet:
// a page takes no answer until `settled`, and the second click of a slower double click is dropped.
export const settled = () => pause(400);
export function dropSecondClicks(buttons) {
  addEventListener("click", (event) => {
    if (event.detail < 2 || !event.target.closest?.(buttons)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
}

// What a page says while it waits.
export function lost(error, waiting) {
  const why = error instanceof Refused ? `The server does not take answers (${error.status}: ${error.message})` : "No connection to the server";
  const kept = waiting ? `${waiting === 1 ? "one answer is" : `${waiting} answers are`} kept in this browser until it is back; ` : "";
  return `${why}: ${kept}trying again…`;
}

export class Server {
  // kind: of the study. offline(text): called with "" once the server answers again.
  constructor(kind, offline) {
    this.kind = kind;
    this.offline = offline;
    this.unsent = [];
    this.last = Promise.resolve();
  }

  call(path, body = null, as = "json") {
    return call("api/" + path, { key: this.key ?? "", body, as });
  }

  // As call, until the server answers. A refusal is thrown.
  async insist(path, body = null, as = "json") {
    for (let tries = 0; ; tries++) {
      try {
        const found = await this.call(path, body, as);
        this.offline("");
        return found;
      } catch (error) {
        if (error.status === 401 || !passing(error)) {
          this.offline("");
          throw error;
        }
        this.offline(lost(error, this.unsent.length));
        await pause(backoff(tries));
      }
    }
  }

  // The state of this browser's person, who joins the study where the server does not know them.
  async enter() {
    this.key = keyOfAddress(this.kind + "-");
    if (this.key) {
      try {
        await this.sendKept();
        return await this.insist("state");
      } catch (error) {
        if (error.status !== 401) throw error;
        kept.remove(this.kind + "-join");
      }
    }
    this.key = (await this.insist("join", joining(this.kind + "-"))).key;
    kept.set(this.kind + "-key", this.key);
    return this.insist("state");
  }

  // Send an answer after those before it, and keep it until it has arrived.
  answer(body) {
    this.unsent.push(body);
    this.keep();
    const sent = this.last.then(async () => {
      try {
        return await this.insist("answer", body);
      } finally {
        this.unsent = this.unsent.filter((one) => one !== body);
        this.keep();
      }
    });
    this.last = sent.catch(() => {});
    return sent;
  }

  keep() {
    if (this.unsent.length) kept.set(this.kind + "-unsent", JSON.stringify({ key: this.key, bodies: this.unsent }));
    else kept.remove(this.kind + "-unsent");
  }

  // What the browser still had when the page was closed.
  async sendKept() {
    const { key, bodies } = JSON.parse(kept.get(this.kind + "-unsent") ?? "{}");
    for (const body of key === this.key ? bodies : []) {
      try {
        await this.answer(body);
      } catch (error) {
        if (error.status === 401) throw error; // anything else was answered in another tab
      }
    }
  }
}

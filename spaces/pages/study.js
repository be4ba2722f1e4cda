import { askConsent } from "./introduction.js";

// Communication with the server of a study. The browser stores an answer until the server has confirmed it, and sends it
// again after a lost connection or a restart. The server stores repeated answers only once.

export const randomId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(24)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// localStorage, or memory if the browser does not allow it (private windows, frames).
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
      // only memory is available
    }
    return found.filter((name) => name.startsWith(start));
  },
  remove(name) {
    memory.delete(name);
    try {
      localStorage.removeItem("saliency-bench:" + name);
    } catch {
      // the value was only in memory
    }
  },
};

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// Messages for errors of a proxy in front of the server, which sends no message.
const refusals = { 413: "the server does not accept answers of this size; tell the person who runs the study", 502: "the study is not running", 504: "the study took too long to respond" };

let agreed = ""; // id of the consent that the person has agreed to on this page

// The server can respond to any request by asking for consent. The request is then repeated.
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
    const text = await answer.json().then((found) => found.error, () => refusals[answer.status] ?? "the server does not respond");
    throw new Refused(answer.status, text);
  }
  return as === "blob" ? answer.blob() : as === "bytes" ? answer.arrayBuffer() : answer.json();
}

// Milliseconds until the next attempt: longer each time, with a random part, so that not all browsers send requests at
// once after a restart of the server.
export const backoff = (tries) => Math.min(30000, 1000 * 2 ** tries) * (0.5 + Math.random());

// Whether the same request may succeed later, because the cause is the server or the network.
export const passing = (error) =>
  !(error instanceof Refused) || error.status >= 500 || [401, 408, 421, 425, 429].includes(error.status);

// Return the key of this browser's person, from the URL (#key=...) or from storage. An invitation (#invite=...) is a
// request to join, which always results in the same person. Parameters (?PROLIFIC_PID=...) remain in the URL.
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

// Return the body of a request to join the study. Repeating the request results in the same person.
export function joining(prefix) {
  const request = kept.get(prefix + "join") ?? randomId();
  kept.set(prefix + "join", request);
  return { request, parameters: Object.fromEntries(new URLSearchParams(location.search)) };
}

// Display what a person gets after finishing: a completion code, or a link back to the recruiting site.
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

// Return [title, text] for a person who gets no more images, or null if the study continues.
export const stopped = (state) =>
  ({
    paused: ["Paused", "The study is paused. Your answers are stored; come back later."],
    closed: ["Thank you", "The study has ended. Your answers are stored."],
    excluded: ["Thank you", "There are no more images for you in this study. Your answers are stored."],
  })[state.stopped] ?? null;

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// If a single click answers a question, the second click of a double click must not answer the next question. A page
// accepts no answer until `settled`, and the second click of a slower double click is ignored.
export const settled = () => pause(400);
export function dropSecondClicks(buttons) {
  addEventListener("click", (event) => {
    if (event.detail < 2 || !event.target.closest?.(buttons)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
}

// Return the message that a page displays while it waits for the server.
export function lost(error, waiting) {
  const why = error instanceof Refused ? `The server does not accept answers (${error.status}: ${error.message})` : "No connection to the server";
  const kept = waiting ? `${waiting === 1 ? "one answer is" : `${waiting} answers are`} stored in this browser until the server is back; ` : "";
  return `${why}: ${kept}trying again…`;
}

export class Server {
  // kind: kind of the study. offline(text): callback with a message, or with "" when the server responds again.
  constructor(kind, offline) {
    this.kind = kind;
    this.offline = offline;
    this.unsent = [];
    this.last = Promise.resolve();
  }

  call(path, body = null, as = "json") {
    return call("api/" + path, { key: this.key ?? "", body, as });
  }

  // Like call, but retry until the server responds. Errors from the server (Refused) are thrown.
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

  // Return the state of this browser's person. A person whom the server does not know joins the study first.
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

  // Send an answer after all earlier answers, and store it until it has arrived.
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

  // Send answers that were still unsent when the page was closed.
  async sendKept() {
    const { key, bodies } = JSON.parse(kept.get(this.kind + "-unsent") ?? "{}");
    for (const body of key === this.key ? bodies : []) {
      try {
        await this.answer(body);
      } catch (error) {
        if (error.status === 401) throw error; // for other errors, the question was answered in another tab
      }
    }
  }
}

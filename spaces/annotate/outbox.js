// Talking to the server. Answers are kept in the browser until the server has confirmed them, and sent again after a
// lost connection, a restart of the server or of the browser; their id sees to it that each is stored once.

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

export async function call(path, { key = "", body = null, as = "json" } = {}) {
  const options = { headers: { "X-Key": key }, signal: AbortSignal.timeout(30000) };
  if (body) {
    options.method = "POST";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  if (!answer.ok) {
    const text = await answer.json().then((found) => found.error, () => "the server does not answer");
    throw new Refused(answer.status, text);
  }
  return as === "blob" ? answer.blob() : as === "bytes" ? answer.arrayBuffer() : answer.json();
}

export class Outbox {
  // confirmed(reply, item), refused(item, text), changed(waiting, offline)
  constructor(key, handlers) {
    this.key = key;
    // Each under a name of its own, so that two tabs do not overwrite each other's.
    this.name = "outbox:" + key.slice(0, 16) + ":";
    this.items = kept.names(this.name).map((name) => JSON.parse(kept.get(name)));
    this.items.sort((one, other) => one.at - other.at);
    this.handlers = handlers;
    this.offline = false;
    this.sending = false;
    addEventListener("online", () => this.send());
  }

  add(path, body) {
    const item = { path, at: Date.now(), body: { ...body, request: randomId() } };
    this.items.push(item);
    kept.set(this.name + item.body.request, JSON.stringify(item));
    this.handlers.changed(this.items.length, this.offline);
    this.send();
  }

  drop(item) {
    this.items.shift();
    kept.remove(this.name + item.body.request);
    this.handlers.changed(this.items.length, this.offline);
  }

  has(unit) {
    return this.items.some((item) => item.body.unit === unit);
  }

  async send() {
    if (this.sending) return;
    this.sending = true;
    clearTimeout(this.timer);
    try {
      while (this.items.length) {
        const item = this.items[0];
        let reply = null;
        try {
          reply = await call(item.path, { key: this.key, body: item.body });
          this.offline = false;
        } catch (error) {
          if (!(error instanceof Refused) || error.status !== 400) {
            this.offline = true;
            this.handlers.changed(this.items.length, true);
            this.timer = setTimeout(() => this.send(), 2000);
            return;
          }
          this.offline = false;
          this.drop(item);
          this.handlers.refused(item, error.message);
          continue;
        }
        this.drop(item);
        this.handlers.confirmed(reply, item);
      }
    } finally {
      this.sending = false;
    }
  }
}

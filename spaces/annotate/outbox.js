// The answers of an annotator. The browser stores them until the server has confirmed them, and sends them again after a
// lost connection or a restart of the server or browser. Each answer has an id, so that it is stored only once.

import { backoff, call, kept, lost, passing, randomId } from "./study.js";

export class Outbox {
  // Callbacks: confirmed(reply, item), refused(item, text), changed(number of waiting answers, reason for waiting or "")
  constructor(key, handlers) {
    this.key = key;
    // Each answer has a separate storage name, so that two tabs do not overwrite each other's answers.
    this.name = "outbox:" + key.slice(0, 16) + ":";
    this.items = kept.names(this.name).map((name) => JSON.parse(kept.get(name)));
    this.items.sort((one, other) => one.at - other.at);
    this.handlers = handlers;
    this.offline = "";
    this.tries = 0;
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
          this.offline = "";
          this.tries = 0;
        } catch (error) {
          if (passing(error)) {
            this.offline = lost(error, this.items.length);
            this.handlers.changed(this.items.length, this.offline);
            this.timer = setTimeout(() => this.send(), backoff(this.tries++));
            return;
          }
          this.offline = ""; // this answer was rejected and must not block the following answers
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

// The answers of an annotator, kept in the browser until the server has confirmed them, and sent again after a lost
// connection, a restart of the server or of the browser; their id makes sure that each is stored once.

import { call, kept, randomId, Refused } from "./study.js";

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

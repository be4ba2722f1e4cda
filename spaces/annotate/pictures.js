// Preloaded images of the next tasks.

import { call } from "./study.js";

export class Pictures {
  constructor(key) {
    this.key = key;
    this.loading = new Map(); // unit -> promise of a bitmap
  }

  get(task) {
    if (task.error) return Promise.resolve(null);
    if (!this.loading.has(task.unit)) {
      const path = `api/image?unit=${encodeURIComponent(task.unit)}`;
      const loading = call(path, { key: this.key, as: "blob" }).then((blob) =>
        createImageBitmap(blob, { imageOrientation: "none" }),
      );
      loading.catch(() => this.loading.delete(task.unit));
      this.loading.set(task.unit, loading);
    }
    return this.loading.get(task.unit);
  }

  // Load the images of these tasks, and release all other images.
  keepOnly(tasks) {
    for (const task of tasks) this.get(task);
    const wanted = new Set(tasks.map((task) => task.unit));
    for (const unit of this.loading.keys()) if (!wanted.has(unit)) this.loading.delete(unit);
  }
}

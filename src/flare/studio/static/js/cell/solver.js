// Asks the studio for the newest state, and for nothing older: while one answer is under way, only the last wish waits.

import { sceneOf } from "./state.js";

export class Solver {
  constructor(api, { onViews, onError }) {
    this.api = api;
    this.onViews = onViews;
    this.onError = onError;
    this.busy = false;
    this.wish = null;
    this.ending = new AbortController();
  }

  ask(state) {
    this.wish = sceneOf(state);
    if (!this.busy) this.go();
  }

  async go() {
    this.busy = true;
    while (this.wish !== null && !this.ending.signal.aborted) {
      const scene = this.wish;
      this.wish = null;
      const start = performance.now();
      try {
        const { views } = await this.api.post("/api/cell", scene, { signal: this.ending.signal });
        if (this.ending.signal.aborted) break;
        this.onViews(views, performance.now() - start);
      } catch (error) {
        if (error.name !== "AbortError") this.onError(error);
      }
    }
    this.busy = false;
  }

  end() {
    this.ending.abort();
  }
}

// Browsers refuse workers to pages that are opened from a folder, and search runs in one. There an empty frame of the same page
// takes its place: messages go in and out as they would with a worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #waiting = [];

    constructor(url) {
      super();
      Object.assign(this.#frame, { hidden: true, srcdoc: "<!doctype html>", onload: () => this.#start(url) });
      document.body.append(this.#frame);
    }

    async #start(url) {
      const inside = this.#frame.contentWindow;
      const load = (address) =>
        new Promise((onload, onerror) => {
          const script = inside.document.createElement("script");
          inside.document.body.append(Object.assign(script, { src: address, onload, onerror }));
        });
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(each)), Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      await load(url);
      const kept = this.#waiting;
      this.#waiting = null;
      kept.forEach((data) => this.postMessage(data));
    }

    postMessage(data) {
      if (this.#waiting) this.#waiting.push(data);
      else this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.#frame.remove();
    }
  };
}

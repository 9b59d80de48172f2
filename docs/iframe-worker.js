// Search runs in a worker, and browsers start none for a page that was opened from disk.
// Here the worker's script runs in a hidden frame instead, behind the same interface.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const url = new URL(address, location.href).href;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><title>worker</title>";
      this.ready = new Promise((resolve) => {
        this.frame.addEventListener("load", () => {
          const inside = this.frame.contentWindow;
          inside.postMessage = (data) => this.receive(structuredClone(data));
          const script = inside.document.createElement("script");
          script.src = url;
          script.onload = () => resolve(inside);
          script.onerror = () => this.onerror?.(new ErrorEvent("error", { message: url }));
          inside.document.head.append(script);
        }, { once: true });
      });
      document.body.append(this.frame);
    }

    receive(data) {
      setTimeout(() => {
        const event = new MessageEvent("message", { data });
        this.onmessage?.(event);
        this.dispatchEvent(event);
      });
    }

    // Both sides get copies, as from a real worker: each changes what it was given.
    postMessage(data) {
      const copy = structuredClone(data);
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data: copy })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}

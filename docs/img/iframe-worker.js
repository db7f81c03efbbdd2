/* Search in pages that were opened from the disk: browsers start no worker there, so Material's runs in a hidden frame of the page. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.document.open(); // Firefox would put an empty document in the place of this one later
      inner.document.write("<!doctype html><body>");
      inner.document.close();
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      script.src = new URL(address, location.href).href;
      this.loaded = new Promise((done, failed) => {
        script.onload = done;
        script.onerror = failed;
      });
      this.postMessage = (data) => this.loaded.then(() => inner.dispatchEvent(new MessageEvent("message", { data })));
      inner.document.body.append(script);
    }
  };
}

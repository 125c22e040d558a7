// Search in pages that are opened as files. Browsers refuse a worker there, so its program runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
      const script = inner.document.createElement("script");
      script.src = url;
      script.onload = () => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      script.onerror = (event) => this.onerror?.(event);
      inner.document.body.append(script);
    }
    postMessage(data) {
      if (this.ready) setTimeout(() => this.frame.contentWindow?.onmessage({ data: structuredClone(data) }));
      else this.waiting.push(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
}

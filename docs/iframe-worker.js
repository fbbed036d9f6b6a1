// Pages that are opened as files may start no worker, and search is one: a hidden frame does its work.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    this.inside = frame.contentWindow;
    this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.ready = new Promise((resolve) => {
      const script = this.inside.document.createElement("script");
      script.src = url;
      script.onload = resolve;
      this.inside.document.body.append(script);
    });
  }

  async postMessage(data) {
    await this.ready;
    this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
  }

  terminate() {
    this.inside.frameElement.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;

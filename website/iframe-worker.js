// Lets the search of the site work where its pages are opened from a folder: browsers start no worker from a file, so
// that a hidden frame, which the same script can run in, takes its place. Over http the browser's own worker is used.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.head.append(frame);
    this.inside = frame.contentWindow;
    this.inside.postToPage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.inside.document.open();
    this.inside.document.write(
      "<script>" +
        "var handed = window.postToPage; window.postMessage = (data) => handed(data);" +
        "window.importScripts = (...urls) => urls.reduce((before, src) => before.then(() => new Promise((done, failed) => {" +
        "  const script = document.createElement('script');" +
        "  script.src = src; script.onload = done; script.onerror = failed; document.body.append(script);" +
        "})), Promise.resolve());" +
        "</scr" + "ipt><body><scr" + `ipt src="${new URL(url, location.href)}"></scr` + "ipt>",
    );
    this.inside.document.close();
    this.ready = new Promise((done) => frame.addEventListener("load", done, { once: true }));
    this.frame = frame;
  }

  postMessage(data) {
    this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}

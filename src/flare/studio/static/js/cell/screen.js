// The Cell screen, to come.
import { el } from "../dom.js";

export function mount(root) {
  root.append(el("p", {}, "Cell"));
  return () => {};
}

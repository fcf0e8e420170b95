// What of a page a person could not read or name: texts of too little contrast, controls without a name, and by how much
// the page is wider than its window.
() => {
  const linear = (part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const solid = (text) => {
    const found = text.match(/[\d.]+/g)?.map(Number);
    return found && (found[3] ?? 1) > 0.95 ? found.slice(0, 3) : null;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = solid(getComputedStyle(at).backgroundColor);
      if (colour) return colour;
    }
    return [255, 255, 255];
  };
  const says = (node) => [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
  const texts = [...document.querySelectorAll("body *")].filter(
    (node) => says(node) && node.checkVisibility() && !node.closest("svg, .unseen, .skip, option, :disabled"),
  );
  const faint = [];
  for (const node of texts) {
    const [a, b] = [light(solid(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.push(`${node.tagName}.${node.className} ${node.textContent.slice(0, 20)} ${ratio.toFixed(2)}`);
  }
  const controls = [...document.querySelectorAll("button, input, select, textarea, a, summary")];
  const named = (node) => node.getAttribute("aria-label") || node.labels?.length || node.textContent.trim();
  const unnamed = controls.filter((node) => node.checkVisibility() && !named(node)).map((node) => node.outerHTML.slice(0, 80));
  return { faint, unnamed, wider: document.documentElement.scrollWidth - innerWidth };
}

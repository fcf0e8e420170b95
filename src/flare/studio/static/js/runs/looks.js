// How groups of runs look: a colour and a pattern of dashes each, so that no two differ by colour alone.

const LIGHT = ["#0072b2", "#b84a00", "#00765a", "#8c3f78", "#6b5a00", "#2c5f9e", "#4a4f57"];
const DARK = ["#55b0e6", "#ff9a5c", "#3fcf9f", "#e59ccb", "#e8c24a", "#a9c8ff", "#c9d1da"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5]];

export function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

/** The look of the n-th group: {colour, dash}. */
export function look(number) {
  const colours = isDark() ? DARK : LIGHT;
  return { colour: colours[number % colours.length], dash: DASHES[(number + Math.floor(number / colours.length)) % DASHES.length] };
}

/** The same colour, pale, for a band. */
export function pale(colour) {
  return `${colour}${isDark() ? "40" : "2b"}`;
}

/** Numbers of groups that stay theirs while others come and go: looks(labels) is a map from label to number. */
export function keeper() {
  const known = new Map();
  return (labels) => {
    for (const label of [...known.keys()]) if (!labels.includes(label)) known.delete(label);
    for (const label of labels) {
      if (known.has(label)) continue;
      const used = new Set(known.values());
      let free = 0;
      while (used.has(free)) free += 1;
      known.set(label, free);
    }
    return known;
  };
}

/** A short line in a group's look, for legends. */
export function sample(svg, { colour, dash }, width = 26) {
  return svg("svg", { class: "sample", width, height: 10, "aria-hidden": "true" },
    svg("line", { x1: 1, x2: width - 1, y1: 5, y2: 5, stroke: colour, "stroke-width": 2.5, "stroke-dasharray": dash.join(" ") }));
}

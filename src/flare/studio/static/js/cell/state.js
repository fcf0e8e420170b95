// What the Cell screen shows, apart from the answer: where devices come from, what was moved, who is asked. A link holds
// all of it.

/** The picture of the README: the paper's cell with a deadline of a second. */
export function firstState() {
  return {
    source: { kind: "cell", wireless: {}, label: "paper's cell" },
    seed: 3,
    round: 0,
    sliders: { bandwidth_hz: 1e7, deadline_s: 1, payload_bits: 1e7, gamma: 10, fading: "none" },
    policies: [{ policy: "exact", options: {} }],
    changes: {},
    selected: null,
  };
}

/** What POST /api/cell takes. */
export function sceneOf(state) {
  const { source, sliders } = state;
  const scene = {
    policies: state.policies,
    seed: state.seed,
    round: state.round,
    changes: Object.entries(state.changes).map(([device, change]) => ({ device: Number(device), ...change })),
  };
  for (const [name, value] of Object.entries(sliders)) if (value !== null && value !== undefined) scene[name] = value;
  if (source.kind === "cell") scene.wireless = source.wireless;
  else scene.devices = source.devices;
  if (state.selected !== null) scene.focus = state.selected;
  return scene;
}

/** Change something of a device; null takes a change back. */
export function change(state, device, values) {
  state.changes[device] = { ...state.changes[device], ...values };
}

/** The state of devices that a file or a run's round brought; `from` is {label}, and of a run {run, index}, too. A payload
 *  that all devices have goes to its slider. */
export function withDevices(state, devices, from, sliders = {}) {
  const bits = devices[0].payload_bits, same = devices.every((one) => one.payload_bits === bits);
  const own = bits === undefined || same ? devices.map(({ payload_bits, ...rest }) => rest) : devices;
  const payload_bits = bits === undefined ? state.sliders.payload_bits : same ? bits : null;
  return {
    ...state,
    source: { kind: "devices", devices: own, label: from.label, run: from.run ?? null },
    sliders: { ...state.sliders, payload_bits, fading: "none", ...sliders },
    round: from.index ?? 0,
    changes: {},
    selected: null,
  };
}

const SLIDERS = { total_bandwidth_hz: "bandwidth_hz", deadline_s: "deadline_s", payload_bits: "payload_bits", fading: "fading" };

/** The state of a configuration's cell: what its sliders can say goes to them. */
export function withCell(state, told, label) {
  const sliders = { bandwidth_hz: 1e7, deadline_s: 0.4, payload_bits: 1e7, fading: "none", gamma: told.gamma };
  const wireless = {};
  for (const [name, value] of Object.entries(told.wireless)) {
    if (name in SLIDERS) sliders[SLIDERS[name]] = value;
    else wireless[name] = value;
  }
  return {
    ...state,
    source: { kind: "cell", wireless, label },
    seed: told.seed,
    round: 0,
    sliders,
    policies: [told.asked, ...state.policies.slice(1)],
    changes: {},
    selected: null,
  };
}

const KEPT = ["tau", "compute_s", "snr_hz", "payload_bits", "weight", "due_s", "cpu_hz", "power_w", "x_m", "y_m"];

/** The devices of a view, as a scene takes them. */
export function devicesOf(view) {
  return view.devices.map((one) => {
    const device = { name: one.name };
    for (const name of KEPT) if (one[name] !== null && one[name] !== undefined) device[name] = one[name];
    return device;
  });
}

async function through(stream, bytes) {
  const squeezed = new Blob([bytes]).stream().pipeThrough(stream);
  return new Uint8Array(await new Response(squeezed).arrayBuffer());
}

/** The state as text that fits into an address. */
export async function packed(state) {
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(JSON.stringify(state)));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The state of such a text; an error where it is none. */
export async function unpacked(text) {
  const raw = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = await through(new DecompressionStream("deflate-raw"), Uint8Array.from(raw, (each) => each.charCodeAt(0)));
  const state = JSON.parse(new TextDecoder().decode(bytes));
  const first = firstState();
  for (const name of Object.keys(first)) if (!(name in state)) throw new Error(`the link does not tell ${name}`);
  return { ...first, ...state };
}

const PARTS = ["source", "sliders", "policies", "changes"];

/** The state of a JSON file that this screen saved. */
export function savedState(text) {
  const told = JSON.parse(text);
  if (told?.flare !== "cell") throw new Error("it is no JSON that this screen saved");
  const state = { ...firstState(), ...told.state };
  for (const name of PARTS) if (typeof state[name] !== "object" || !state[name]) throw new Error(`it does not tell ${name}`);
  return state;
}

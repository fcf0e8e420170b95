// The order of the senders, one for Gantt and band: widest share first, then the last to finish, as in `flare schedule
// --plot`.

export const MAX_ROWS = 120;

export function senders(view) {
  return view.devices
    .filter((one) => one.sends)
    .sort((a, b) => {
      const share = Math.round(1e9 * (b.bandwidth_hz - a.bandwidth_hz) / view.bandwidth_hz);
      return share || b.finish_s - a.finish_s || a.index - b.index;
    });
}

/** Rows that two views share, so that the same device stands at the same height: those of the first view, then those
 *  that only the second one has. */
export function rowsOf(views) {
  const rows = senders(views[0]).map((one) => one.index);
  const known = new Set(rows);
  for (const view of views.slice(1)) for (const one of senders(view)) if (!known.has(one.index)) rows.push(one.index);
  return rows;
}

// How long requests took, from the broker's counts by class (`polybus.core.latency`): four classes to an octave,
// beginning at a microsecond.  The counts only grow; each who looks takes the difference between two looks.

const PER_OCTAVE = 4;
const MICROSECONDS = 1e6;

/** The middle of a class, in seconds. */
export function secondsAt(place) {
  return 2 ** ((place + 0.5) / PER_OCTAVE) / MICROSECONDS;
}

/** How many requests of each class came between two looks. */
export function difference(now, before) {
  const counts = new Map();
  for (const [place, count] of Object.entries(now)) {
    const grown = count - ((before && before[place]) || 0);
    // Nobody looked for a while, and it was counted anew.
    if (grown < 0) return new Map(Object.entries(now).map(([at, all]) => [Number(at), all]));
    if (grown) counts.set(Number(place), grown);
  }
  return counts;
}

export function merge(parts) {
  const total = new Map();
  for (const part of parts) {
    for (const [place, count] of part) total.set(place, (total.get(place) || 0) + count);
  }
  return total;
}

/** How long these parts of all requests took at most, in seconds; null where there were none. */
export function percentiles(counts, fractions) {
  const places = [...counts.keys()].sort((one, other) => one - other);
  let all = 0;
  for (const count of counts.values()) all += count;
  return fractions.map((fraction) => {
    if (!all) return null;
    let seen = 0;
    for (const place of places) {
      seen += counts.get(place);
      if (seen >= all * fraction) return secondsAt(place);
    }
    return secondsAt(places[places.length - 1]);
  });
}

// Numbers and times as text for people. Pure functions; a value that is missing becomes a dash.

export const NOTHING = '–';

const known = (value) => typeof value === 'number' && Number.isFinite(value);

export function countText(value) {
  return known(value) ? Math.round(value).toLocaleString('en') : NOTHING;
}

export function numberText(value, digits = 4) {
  if (!known(value)) return NOTHING;
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e7)) return value.toExponential(2);
  return Number(value.toPrecision(digits)).toLocaleString('en', {maximumFractionDigits: 8});
}

export function percentText(share, digits = 1) {
  return known(share) ? `${(100 * share).toFixed(digits)} %` : NOTHING;
}

export function bytesText(bytes) {
  if (!known(bytes)) return NOTHING;
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    ++unit;
  }
  return `${unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

// "3 s", "4 min 05 s", "2 h 07 min", "3 d 4 h".
export function durationText(seconds) {
  if (!known(seconds)) return NOTHING;
  const whole = Math.max(0, Math.round(seconds));
  const two = (number) => String(number).padStart(2, '0');
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole / 60) % 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

// Of a short time: "3.20 ms", "1.53 s".
export function shortTimeText(seconds) {
  if (!known(seconds)) return NOTHING;
  if (seconds < 1e-3) return `${(1e6 * seconds).toFixed(0)} µs`;
  return seconds < 1 ? `${(1e3 * seconds).toFixed(2)} ms` : `${seconds.toFixed(2)} s`;
}

export function rateText(samplesPerSecond) {
  return known(samplesPerSecond) && samplesPerSecond > 0 ? `${countText(samplesPerSecond)} samples/s` : NOTHING;
}

// "2026-11-25 16:40:07" of an ISO 8601 text or of milliseconds, in the time of the reader's clock.
export function timeText(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return NOTHING;
  const two = (number) => String(number).padStart(2, '0');
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
      `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function clockText(time) {
  return timeText(time).slice(11) || NOTHING;
}

// "P@5" of "p_at_5", as in figure_title of the programs.
export function figureTitle(name) {
  const titles = {p: 'P', ndcg: 'nDCG', mrr: 'MRR', psp: 'PSP', auc: 'AUC', log_loss: 'log-loss'};
  const at = name.indexOf('_at_');
  const word = at < 0 ? name : name.slice(0, at);
  const title = titles[word] ?? word;
  return at < 0 ? title : `${title}@${name.slice(at + 4)}`;
}

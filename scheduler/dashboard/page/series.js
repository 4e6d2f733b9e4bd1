// What the events of a run (docs/events.md) say about its course: curves, marks on the time axis, times of its nodes.
// Pure data, no elements. The page and the report use it.

const kMostPoints = 20000;  // of a curve; beyond it every second point is dropped
const kMostMarks = 500;  // of a kind, likewise: many epochs hide no recovery

// A curve over steps. A run that goes on from a snapshot repeats steps: the later values replace the earlier ones.
export class Curve {
  constructor(title) {
    this.title = title;
    this.xs = [];
    this.ys = [];
  }

  add(x, y) {
    if (!Number.isFinite(x) || !Number.isFinite(y)) return;
    let size = this.xs.length;
    while (size > 0 && this.xs[size - 1] >= x) --size;
    this.xs.length = this.ys.length = size;
    this.xs.push(x);
    this.ys.push(y);
    if (size < kMostPoints) return;
    this.xs = this.xs.filter((_, at) => at % 2 === 0 || at === size);
    this.ys = this.ys.filter((_, at) => at % 2 === 0 || at === size);
  }

  get last() {
    return this.ys.at(-1);
  }
}

// The curves that an evaluation has, in the order in which they are shown.
const kMetrics = ['p_at_1', 'p_at_3', 'p_at_5'];

const kMarks = {
  started: (event) => `begins at step ${event.step ?? 0}` + (event.nodes ? ` on ${event.nodes} node(s)` : ''),
  regrouped: (event) => `goes on from step ${event.step}: ${event.why}`,
  replanned: (event) => `step ${event.step}: ${event.node} is ${Number(event.slower).toFixed(2)} times slower than planned; ` +
      `${event.moved_modelets} modelets moved`,
  checkpoint: (event) => `checkpoint at step ${event.step}`,
  epoch: (event) => `epoch ${event.epoch} done at step ${event.step}`,
  task: (event) => `task ${event.task} ${event.state} as run ${event.run}`,
  tower_started: (event) => `tower ${event.tower} of ${event.towers} begins`,
  tower_finished: (event) => `tower ${event.tower} of ${event.towers} is trained`,
  finished: (event) => `finished after ${event.steps} steps`,
  interrupted: (event) => `stopped at step ${event.step}`,
  failed: (event) => `failed: ${event.error}`,
};

// The lanes of the time axis: which events they have, and the shape that marks them.
export const kLanes = [
  {title: 'start and end', shape: 'bar', kinds: ['started', 'finished', 'interrupted', 'failed']},
  {title: 'recoveries', shape: 'triangle', kinds: ['regrouped']},
  {title: 're-plans', shape: 'diamond', kinds: ['replanned']},
  {title: 'snapshots', shape: 'square', kinds: ['checkpoint', 'snapshot']},
  {title: 'epochs', shape: 'circle', kinds: ['epoch', 'task', 'tower_started', 'tower_finished']},
];

export class RunSeries {
  constructor() {
    this.clearCurves();
    this.marks = [];           // {time, step, kind, text}, in order
    this.counts = {};          // of marks of each kind
    this.started = null;       // the first "started"
    this.progress = null;      // the last "progress"
    this.times = null;         // the last "nodes" of a progress
    this.doing = '';           // what it does beside steps
    this.end = null;           // the last event of a run that has ended
    this.lastTime = null;
  }

  clearCurves() {
    this.loss = new Curve('loss');
    this.rate = new Curve('samples/s');
    this.metrics = new Map();  // title -> Curve
  }

  add(events) {
    for (const event of events) this.addOne(event);
  }

  addOne(event) {
    this.lastTime = event.time ?? this.lastTime;
    const mark = kMarks[event.event];
    if (mark) this.mark(event.event, event.time, event.step ?? event.steps, mark(event));
    this.doing = '';
    switch (event.event) {
      case 'started':
        this.started ??= event;
        this.end = null;
        break;
      case 'tower_started':  // its steps count from 1 again
        this.clearCurves();
        break;
      case 'progress':
        this.progress = event;
        this.loss.add(event.step, event.loss);
        this.rate.add(event.step, event.samples_per_second);
        if (Array.isArray(event.nodes)) this.times = event.nodes;
        break;
      case 'epoch':
        this.addMetrics(event.step, event, '');
        if (event.validation) this.addMetrics(event.step, event.validation, 'held-out ');
        break;
      case 'finished':
        this.addMetrics(event.steps, event, '');
        if (event.validation) this.addMetrics(event.best_step, event.validation, 'held-out ');
        this.end = event;
        break;
      case 'interrupted':
      case 'failed':
        this.end = event;
        break;
      case 'preparing':
        this.doing = `${event.node ? `${event.node} prepares` : 'prepares'} data, ${Math.round(100 * event.done)} %`;
        break;
      case 'fetching':
        this.doing = `${event.node ?? 'a node'} fetches ${event.data} data`;
        break;
      case 'evaluating':
        this.doing = `evaluates ${event.data} data, ${event.rows} of ${event.total_rows} samples`;
        break;
    }
  }

  addMetrics(step, figures, prefix) {
    for (const name of kMetrics) {
      if (!Number.isFinite(figures[name])) continue;
      const title = `${prefix}P@${name.slice(5)}`;
      if (!this.metrics.has(title)) this.metrics.set(title, new Curve(title));
      this.metrics.get(title).add(step, figures[name]);
    }
  }

  mark(kind, time, step, text) {
    this.marks.push({kind, time: Date.parse(time), step, text});
    this.counts[kind] = (this.counts[kind] ?? 0) + 1;
    if (this.counts[kind] <= kMostMarks) return;
    let place = 0;
    this.marks = this.marks.filter((each) => each.kind !== kind || (this.counts[kind] - place++) % 2 !== 0);
    this.counts[kind] = this.marks.filter((each) => each.kind === kind).length;
  }

  // What happened to the group, for lines across the curves.
  get breaks() {
    return this.marks.filter((mark) => mark.kind === 'regrouped' || mark.kind === 'replanned');
  }
}

// Of the times of a run's nodes: which one computes notably longer than the others do in the mean, and how much.
export function straggler(times) {
  if (!times || times.length < 2) return null;
  const slowest = times.reduce((most, node) => (node.compute_seconds > most.compute_seconds ? node : most));
  const sum = times.reduce((total, node) => total + node.compute_seconds, 0);
  const others = (sum - slowest.compute_seconds) / (times.length - 1);
  const excess = others > 0 ? slowest.compute_seconds / others - 1 : 0;
  return excess > 0.15 ? {node: slowest.node, excess} : null;
}

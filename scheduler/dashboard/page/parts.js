// What shows one run: facts, curves, events, times of its nodes, placement. The page and the report use it.
import {CurveChart, NodeTimes, Timeline} from './charts.js';
import {make, reconcile, setText, show} from './dom.js';
import {straggler} from './series.js';
import {bytesText, countText, durationText, NOTHING, numberText, percentText, rateText} from './text.js';

// A list of facts: update([[title, text]]).
export class Facts {
  constructor() {
    this.element = make('dl', {class: 'facts'});
  }

  update(facts) {
    reconcile(this.element, facts, ([title]) => title, ([title]) => make('div', {}, make('dt', {}, title), make('dd')),
              (item, [, text]) => setText(item.lastChild, text));
  }
}

// How many modelets each node has, and how much memory they take: update([{node, modelets, bytes}]).
export class Placement {
  constructor() {
    this.list = make('ul', {class: 'placement'});
    this.none = make('p', {class: 'none'}, 'no modelets are placed now');
    this.element = make('div', {}, this.none, this.list);
  }

  update(placement) {
    placement ??= [];
    show(this.none, placement.length === 0);
    show(this.list, placement.length > 0);
    const most = Math.max(1, ...placement.map((node) => node.bytes));
    reconcile(this.list, placement, (node) => node.node,
              () => make('li', {}, make('span', {class: 'name'}), make('span', {class: 'bar', 'aria-hidden': 'true'}, make('span', {class: 'bytes'})),
                         make('span', {class: 'said'})),
              (item, node) => {
                const [name, bar, said] = item.children;
                setText(name, node.node);
                bar.firstChild.style.width = `${100 * node.bytes / most}%`;
                setText(said, `${countText(node.modelets)} modelets, ${bytesText(node.bytes)}`);
              });
  }
}

// The drawings that a run's events allow, for the page and the report.
export class RunCharts {
  constructor() {
    this.loss = new CurveChart({title: 'Loss'});
    this.metrics = new CurveChart({title: 'Precision', format: (value) => percentText(value)});
    this.rate = new CurveChart({title: 'Samples a second', format: countText, height: 160});
    this.timeline = new Timeline();
    this.times = new NodeTimes();
  }

  update(series, moreMarks = []) {
    this.loss.update([series.loss], series.breaks);
    this.metrics.update([...series.metrics.values()], series.breaks);
    this.rate.update([series.rate], series.breaks);
    const marks = moreMarks.length ? [...series.marks, ...moreMarks].sort((a, b) => a.time - b.time) : series.marks;
    this.timeline.update(marks);
    this.times.update(series.times, straggler(series.times));
  }
}

export function progressFacts(series) {
  const {progress, started} = series, facts = [];
  const add = (title, text) => text !== NOTHING && facts.push([title, text]);
  const steps = progress?.steps ?? started?.steps;
  if (progress) facts.push(['step', `${countText(progress.step)} of ${countText(steps)}`], ['epoch', countText(progress.epoch)]);
  if (progress && !series.end) add('time left', durationText(progress.eta_seconds));
  add('rate', rateText(progress?.samples_per_second));
  add('loss', numberText(series.loss.last));
  for (const curve of series.metrics.values()) add(curve.title, percentText(curve.last));
  add('trained for', durationText(progress?.train_seconds));
  if (started?.nodes > 1) {
    add('sent per node and step', bytesText(progress?.bytes_sent_per_node_per_step));
    add('first node waits', percentText(progress?.wait_fraction, 0));
  }
  add('parameters', countText(started?.parameters));
  add('labels', countText(started?.labels));
  add('training samples', countText(started?.train_rows));
  return facts;
}

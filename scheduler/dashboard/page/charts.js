// Drawings: curves, the time axis of events, bars of a node's times, the map of nodes over time. Each has an element and
// update(). Whatever colour says, a shape, a dash or a word says as well. The page and the report use it; uPlot is a
// script of its own that has been loaded before.
import {make, makeSvg, reconcile, setAttribute, setText, show} from './dom.js';
import {kLanes} from './series.js';
import {clockText, numberText, percentText, shortTimeText, timeText} from './text.js';

const kColours = ['--curve-1', '--curve-2', '--curve-3', '--curve-4', '--curve-5', '--curve-6'];
const kDashes = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 4], [14, 4]];
const kDashNames = ['solid', 'long dashes', 'dots', 'dash and dot', 'short dashes', 'very long dashes'];

// A colour of the style sheet, as the present theme has it.
function colour(name) {
  const probe = make('span', {hidden: true});
  document.body.append(probe);
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// Calls all drawings again when the theme changes.
const repainted = new Set();
export function repaint() {
  for (const drawing of repainted) drawing();
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);

// Curves over steps. update([{title, xs, ys}], breaks): `breaks` are marks with a step, drawn as lines across.
export class CurveChart {
  constructor({title, format = numberText, height = 220}) {
    this.title = title;
    this.format = format;
    this.height = height;
    this.curves = [];
    this.breaks = [];
    this.canvas = make('div', {class: 'canvas', role: 'img'});
    this.none = make('p', {class: 'none'}, 'no values yet');
    this.legend = make('ul', {class: 'legend'});
    this.rows = make('tbody');
    this.values = make('details', {ontoggle: () => this.showValues()}, make('summary', {}, `Values of ${title}`),
                       make('table', {}, make('thead', {}, make('tr', {}, ...['curve', 'step', 'value'].map(
                           (text) => make('th', {scope: 'col'}, text)))), this.rows));
    this.element = make('figure', {class: 'chart'}, make('figcaption', {}, title), this.canvas, this.none, this.legend, this.values);
    new ResizeObserver(() => this.fit()).observe(this.canvas);
    repainted.add(() => this.draw(true));
  }

  update(curves, breaks = []) {
    this.curves = curves.filter((curve) => curve.xs.length > 0);
    this.breaks = breaks;
    show(this.none, this.curves.length === 0);
    this.draw(false);
    const last = (curve) => this.format(curve.ys.at(-1));
    reconcile(this.legend, this.curves, (curve) => curve.title,
              () => make('li', {}, makeSvg('svg', {class: 'sample', viewBox: '0 0 36 8', 'aria-hidden': 'true'},
                                           makeSvg('line', {x1: 0, y1: 4, x2: 36, y2: 4})), make('span')),
              (item, curve) => {
                const at = this.curves.indexOf(curve);
                const line = item.firstChild.firstChild;
                setAttribute(line, 'class', `curve-${at % kColours.length + 1}`);
                setAttribute(line, 'stroke-dasharray', kDashes[at % kDashes.length].join(' ') || null);
                setText(item.lastChild, `${curve.title} ${last(curve)}`);
              });
    setAttribute(this.canvas, 'aria-label', `${this.title}: ` + (this.curves.map((curve, at) =>
        `${curve.title} (${kDashNames[at % kDashNames.length]}) from ${this.format(curve.ys[0])} to ${last(curve)} ` +
        `at step ${curve.xs.at(-1)}`).join('; ') || 'no values yet'));
    this.showValues();
  }

  // At most so many values of each curve, evenly chosen, and only while somebody looks.
  showValues() {
    const kMost = 40;
    if (!this.values.open) return;
    const rows = this.curves.flatMap((curve) => {
      const each = Math.max(1, Math.ceil(curve.xs.length / kMost));
      return curve.xs.map((x, at) => [curve.title, x, curve.ys[at]])
          .filter((_, at) => (curve.xs.length - 1 - at) % each === 0);
    });
    reconcile(this.rows, rows, (row) => `${row[0]} ${row[1]}`, () => make('tr', {}, make('td'), make('td'), make('td')),
              (row, [title, x, y]) => [title, x, this.format(y)].forEach((text, at) => setText(row.children[at], text)));
  }

  draw(anew) {
    const signature = this.curves.map((curve) => curve.title).join('\n');
    if (this.plot && (anew || signature !== this.signature)) {
      this.plot.destroy();
      this.plot = null;
    }
    if (this.curves.length === 0) return;
    const tables = this.curves.map((curve) => [curve.xs, curve.ys]);
    const data = tables.length === 1 ? tables[0] : uPlot.join(tables);
    if (this.plot) return this.plot.setData(data);
    this.signature = signature;
    const text = colour('--text'), grid = {stroke: colour('--line'), width: 1}, breaks = colour('--warn');
    const axis = {stroke: text, grid, ticks: grid, font: '12px system-ui, sans-serif'};
    this.plot = new uPlot({
      width: this.canvas.clientWidth || 300,
      height: this.height,
      legend: {show: false},
      cursor: {drag: {x: true, y: false}},
      scales: {x: {time: false}},
      axes: [{...axis, values: (_, splits) => splits.map((split) => numberText(split, 6))},
             {...axis, size: 64, values: (_, splits) => splits.map((split) => this.format(split))}],
      series: [{}, ...this.curves.map((curve, at) => ({
        label: curve.title, stroke: colour(kColours[at % kColours.length]), dash: kDashes[at % kDashes.length], width: 2,
        spanGaps: true, points: {show: (_, series) => this.curves[series - 1]?.xs.length < 60},
      }))],
      hooks: {draw: [(plot) => this.drawBreaks(plot, breaks)]},
    }, data, this.canvas);
  }

  drawBreaks(plot, stroke) {
    const {ctx, bbox} = plot;
    ctx.save();
    ctx.strokeStyle = stroke;
    ctx.setLineDash([3, 3]);
    for (const mark of this.breaks) {
      if (!(mark.step >= plot.scales.x.min && mark.step <= plot.scales.x.max)) continue;
      const x = Math.round(plot.valToPos(mark.step, 'x', true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  fit() {
    const width = this.canvas.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({width, height: this.height});
  }
}

function shapeOf(shape, x, y) {
  switch (shape) {
    case 'triangle': return makeSvg('path', {d: `M${x} ${y - 7}l7 13h-14z`});
    case 'diamond': return makeSvg('path', {d: `M${x} ${y - 7}l7 7l-7 7l-7 -7z`});
    case 'square': return makeSvg('rect', {x: x - 5, y: y - 5, width: 10, height: 10});
    case 'circle': return makeSvg('circle', {cx: x, cy: y, r: 5});
    default: return makeSvg('rect', {x: x - 2, y: y - 9, width: 4, height: 18});
  }
}

// Which marks are listed, the newest first: those of what happens often leave room for the others.
function listed(marks) {
  const kOften = ['epoch', 'checkpoint', 'snapshot', 'task'], kMost = 25;
  const newest = (wanted) => marks.filter((mark) => kOften.includes(mark.kind) === wanted).slice(-kMost);
  const shown = new Set([...newest(true), ...newest(false)]);
  return marks.filter((mark) => shown.has(mark)).reverse();
}

// The marks of a run on an axis of time, a lane for each kind, and the same as a list.
export class Timeline {
  constructor() {
    this.svg = makeSvg('svg', {class: 'timeline', 'aria-hidden': 'true'});
    this.list = make('ol', {class: 'marks', reversed: true});
    this.none = make('p', {class: 'none'}, 'nothing has happened yet');
    this.element = make('div', {}, this.svg, this.none, this.list);
    this.marks = [];
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  update(marks) {
    if (marks.length === this.count && marks.at(-1) === this.marks.at(-1)) return;
    this.marks = marks;
    this.count = marks.length;
    show(this.none, marks.length === 0);
    reconcile(this.list, listed(marks), (mark) => mark, () => make('li', {}, make('time'), make('span')), (item, mark) => {
      setText(item.firstChild, timeText(mark.time));
      setText(item.lastChild, mark.text);
    });
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    const marks = this.marks.filter((mark) => Number.isFinite(mark.time));
    const lanes = kLanes.filter((lane) => marks.some((mark) => lane.kinds.includes(mark.kind)));
    if (width <= 0 || lanes.length === 0) return this.svg.replaceChildren();
    const left = 96, right = 16, laneHeight = 26, height = lanes.length * laneHeight + 22;
    const begin = marks[0].time, span = Math.max(1, marks.at(-1).time - begin);
    const xOf = (time) => left + (width - left - right) * (time - begin) / span;
    const parts = [];
    lanes.forEach((lane, at) => {
      const y = at * laneHeight + laneHeight / 2;
      parts.push(makeSvg('line', {class: 'lane', x1: left, x2: width - right, y1: y, y2: y}),
                 makeSvg('text', {x: 0, y: y + 4}, lane.title));
      let last = -Infinity;  // marks that would cover each other are one
      for (const mark of marks) {
        const x = xOf(mark.time);
        if (!lane.kinds.includes(mark.kind) || x - last < 3) continue;
        last = x;
        const shape = shapeOf(lane.shape, x, y);
        shape.setAttribute('class', `mark ${mark.kind}`);
        shape.append(makeSvg('title', {}, `${clockText(mark.time)} ${mark.text}`));
        parts.push(shape);
      }
    });
    parts.push(makeSvg('text', {x: left, y: height - 4}, clockText(begin)),
               makeSvg('text', {x: width - right, y: height - 4, 'text-anchor': 'end'}, clockText(marks.at(-1).time)));
    setAttribute(this.svg, 'width', width);
    setAttribute(this.svg, 'height', height);
    setAttribute(this.svg, 'viewBox', `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts);
  }
}

const kParts = [['compute_seconds', 'computes'], ['codec_seconds', 'encodes'], ['wait_seconds', 'waits']];

// What each node of a run does in a step, as bars of one scale. update([{node, compute_seconds, ...}], slowest).
export class NodeTimes {
  constructor() {
    this.list = make('ul', {class: 'times'});
    this.none = make('p', {class: 'none'}, 'its nodes have not reported yet');
    this.element = make('div', {}, make('ul', {class: 'legend', 'aria-hidden': 'true'},
        ...kParts.map(([name, title]) => make('li', {}, make('span', {class: `swatch ${name}`}), title))), this.none, this.list);
  }

  update(times, slowest) {
    times ??= [];
    show(this.none, times.length === 0);
    const sum = (node) => kParts.reduce((total, [name]) => total + (node[name] ?? 0), 0);
    const most = Math.max(1e-12, ...times.map(sum));
    reconcile(this.list, times, (node) => node.node,
              () => make('li', {}, make('span', {class: 'name'}),
                         make('span', {class: 'bar', 'aria-hidden': 'true'}, ...kParts.map(([name]) => make('span', {class: name}))),
                         make('span', {class: 'said'})),
              (item, node) => {
                const [name, bar, said] = item.children;
                setText(name, node.node);
                kParts.forEach(([part], at) => { bar.children[at].style.width = `${100 * (node[part] ?? 0) / most}%`; });
                const slow = slowest?.node === node.node ? ` – slowest, ${percentText(slowest.excess, 0)} longer than the others` : '';
                setText(said, kParts.map(([part, title]) => `${title} ${shortTimeText(node[part])}`).join(', ') + slow);
                setAttribute(item, 'class', slow ? 'slow' : null);
              });
  }
}

// Nodes over time: how dark a cell is says which share of a step the node spent with the chosen part. A cross: the node
// was there before, and is not now. update({began, interval_seconds, nodes: [{name, compute_seconds: [], ...}]}): an
// entry for each interval, in seconds of a step; 0: nothing was reported, null: the node was not there.
export class HeatMap {
  constructor() {
    this.part = kParts[0][0];
    this.choice = make('select', {'aria-label': 'what the map shows', onchange: () => {
      this.part = this.choice.value;
      this.draw();
    }}, ...kParts.map(([value, title]) => make('option', {value}, title)));
    this.canvas = make('canvas', {tabindex: 0, role: 'img', onpointermove: (event) => this.point(event),
                                  onkeydown: (event) => this.step(event)});
    this.said = make('p', {class: 'said', 'aria-live': 'polite'});
    this.none = make('p', {class: 'none'}, 'no node has reported a step yet');
    this.scale = make('p', {class: 'scale'}, make('span', {class: 'ramp', 'aria-hidden': 'true'}),
                      'pale 0 %, dark 100 % of a step; × it was not there; arrow keys read a cell');
    this.element = make('div', {class: 'heat'}, make('label', {}, 'share of a step that a node ', this.choice), this.none,
                        this.canvas, this.said, this.scale);
    this.history = {began: 0, interval_seconds: 1, nodes: []};
    this.at = {row: 0, column: 0};
    new ResizeObserver(() => this.draw()).observe(this.element);
    repainted.add(() => this.draw());
  }

  update(history) {
    this.history = history;
    this.draw();
  }

  get columns() {
    return Math.max(0, ...this.history.nodes.map((node) => node.compute_seconds.length));
  }

  share(node, column) {
    const total = kParts.reduce((sum, [part]) => sum + (node[part][column] ?? 0), 0);
    return total > 0 ? node[this.part][column] / total : null;
  }

  isLost(node, column) {
    return node.compute_seconds[column] === null && node.compute_seconds.slice(0, column).some((seconds) => seconds !== null);
  }

  draw() {
    const {nodes} = this.history, columns = this.columns;
    const empty = nodes.length === 0 || columns === 0;
    for (const part of [this.canvas, this.scale]) show(part, !empty);
    show(this.none, empty);
    const width = this.element.clientWidth;
    if (empty || width <= 0) return;
    const named = nodes.length <= 40, height = named ? 16 : 6;
    this.layout = {left: named ? 88 : 0, height, step: (width - (named ? 88 : 0)) / columns};
    const ratio = devicePixelRatio || 1;
    const {canvas} = this;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== nodes.length * height * ratio) {
      canvas.width = Math.round(width * ratio);
      canvas.height = nodes.length * height * ratio;
      canvas.style.height = `${nodes.length * height}px`;
    }
    const paint = canvas.getContext('2d');
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, nodes.length * height);
    const text = colour('--text'), cell = colour('--heat'), lost = colour('--bad');
    paint.font = '12px system-ui, sans-serif';
    paint.textBaseline = 'middle';
    nodes.forEach((node, row) => {
      const y = row * height;
      if (named) {
        paint.fillStyle = text;
        paint.fillText(node.name.length > 12 ? `${node.name.slice(0, 11)}…` : node.name, 0, y + height / 2, 84);
      }
      let there = false;
      for (let column = 0; column < columns; ++column) {
        const x = this.layout.left + column * this.layout.step, wide = Math.max(1, this.layout.step - (this.layout.step > 4 ? 1 : 0));
        const absent = node.compute_seconds[column] === null;
        there ||= !absent;
        if (absent) {
          if (!there) continue;
          paint.globalAlpha = 1;
          paint.strokeStyle = lost;
          paint.beginPath();
          paint.moveTo(x, y + 1);
          paint.lineTo(x + wide, y + height - 2);
          paint.moveTo(x, y + height - 2);
          paint.lineTo(x + wide, y + 1);
          paint.stroke();
          continue;
        }
        const share = this.share(node, column);
        if (share === null) continue;
        paint.globalAlpha = 0.08 + 0.92 * Math.min(1, share);
        paint.fillStyle = cell;
        paint.fillRect(x, y, wide, height - 1);
      }
      paint.globalAlpha = 1;
    });
    setAttribute(canvas, 'aria-label', `Map of ${nodes.length} nodes over ${columns} intervals of ${this.history.interval_seconds} s: ` +
        'the table of nodes has the present values');
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    this.say(Math.floor((event.clientY - box.top) / this.layout.height),
             Math.floor((event.clientX - box.left - this.layout.left) / this.layout.step));
  }

  step(event) {
    const move = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (!move) return;
    event.preventDefault();
    this.say(this.at.row + move[0], this.at.column + move[1]);
  }

  say(row, column) {
    row = Math.max(0, Math.min(this.history.nodes.length - 1, row));
    column = Math.max(0, Math.min(this.columns - 1, column));
    this.at = {row, column};
    const node = this.history.nodes[row];
    const share = this.share(node, column);
    const when = clockText(1000 * (this.history.began + column * this.history.interval_seconds));
    const what = this.isLost(node, column) ? 'not there' : share === null ? 'nothing reported' :
        `${this.choice.selectedOptions[0].textContent} ${percentText(share, 0)} of a step`;
    setText(this.said, `${node.name}, ${when}: ${what}`);
  }
}

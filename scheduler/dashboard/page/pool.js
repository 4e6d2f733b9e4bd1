// The views of the whole pool: its line, its nodes and what they do over time, the queue, the runs.
import {act, get} from './api.js';
import {HeatMap} from './charts.js';
import {make, PagedTable, setAttribute, setText, show} from './dom.js';
import {hasEnded, nodesText, nodeState, runState, waits} from './states.js';
import {bytesText, countText, durationText, percentText, rateText, shortTimeText, timeText} from './text.js';

function showState(cell, {word, sign, tone, why}) {
  if (!cell.firstChild) cell.append(make('span'), make('span', {class: 'why'}));
  setAttribute(cell.firstChild, 'class', `state ${tone}`);
  setAttribute(cell.firstChild, 'data-sign', sign);
  setText(cell.firstChild, word);
  setText(cell.lastChild, why ?? '');
}

function showRunLink(cell, run, text) {
  if (!cell.firstChild) cell.append(make('a'));
  show(cell.firstChild, Boolean(run));
  setAttribute(cell.firstChild, 'href', `#/runs/${run}`);
  setText(cell.firstChild, text);
}

// A button that asks before it acts, and says what went wrong.
export function actionButton(text, question, path) {
  const button = make('button', {type: 'button', onclick: async () => {
    if (!confirm(question)) return;
    button.disabled = true;
    try {
      await act(path);
    } catch (error) {
      alert(error.message);
    } finally {
      button.disabled = false;
    }
  }}, text);
  return button;
}

function showNodeActions(cell, node, allowed) {
  if (!cell.firstChild) {
    const path = `api/nodes/${encodeURIComponent(node.name)}`;
    cell.append(actionButton('Drain', `Let runs go on without ${node.name}? It gets no work until it is undrained.`, `${path}/drain`),
                actionButton('Undrain', `Let ${node.name} work again?`, `${path}/undrain`));
    setAttribute(cell.firstChild, 'aria-label', `Drain ${node.name}`);
    setAttribute(cell.lastChild, 'aria-label', `Undrain ${node.name}`);
  }
  const {kind} = nodeState(node), there = kind !== 'lost' && kind !== 'pending';
  show(cell.firstChild, allowed && there && !node.draining);
  show(cell.lastChild, allowed && there && Boolean(node.draining));
}

export class NodesTable {
  constructor(rows) {
    this.allowed = false;
    const measured = (node) => node.compute_seconds > 0;
    this.table = new PagedTable({
      label: 'nodes', rows, empty: 'no nodes: start modelet-agent on a machine', keyOf: (node) => node.name,
      searched: (node) => `${node.name} ${nodeState(node).word} ${node.address ?? ''}`,
      columns: [
        {title: 'node', class: 'name', cell: (cell, node) => setText(cell, node.name)},
        {title: 'state', class: 'state-cell', cell: (cell, node) => showState(cell, nodeState(node))},
        {title: 'run', cell: (cell, node) => showRunLink(cell, node.run, node.run)},
        {title: 'step', class: 'number wide', cell: (cell, node) => setText(cell, node.run ? countText(node.step) : '')},
        {title: 'compute/step', class: 'number wide', cell: (cell, node) => setText(cell, measured(node) ? shortTimeText(node.compute_seconds) : '')},
        {title: 'waits', class: 'number wide', cell: (cell, node) => setText(cell, measured(node) ? percentText(node.wait_share, 0) : '')},
        {title: 'cores', class: 'number wider', cell: (cell, node) => setText(cell, node.cores ?? '')},
        {title: 'memory', class: 'number wide', cell: (cell, node) => setText(cell, bytesText(node.memory_bytes))},
        {title: 'GFLOP/s', class: 'number wider', cell: (cell, node) => setText(cell, countText(node.gflops))},
        {title: 'disk free', class: 'number wide', cell: (cell, node) => setText(cell, node.disk_free_bytes ? bytesText(node.disk_free_bytes) : '')},
        {title: 'sent', class: 'number wider', cell: (cell, node) => setText(cell, node.sent_bytes ? bytesText(node.sent_bytes) : '')},
        {title: 'received', class: 'number wider', cell: (cell, node) => setText(cell, node.received_bytes ? bytesText(node.received_bytes) : '')},
        {title: 'silent', class: 'number wider', cell: (cell, node) => setText(cell, node.silent_seconds > 2 ? durationText(node.silent_seconds) : '')},
        {title: 'address', class: 'name wide', cell: (cell, node) => setText(cell, node.address ?? '')},
        {title: 'version', class: 'wider', cell: (cell, node) => setText(cell, node.version ?? '')},
        {title: 'actions', cell: (cell, node, row) => {
          setAttribute(row, 'class', nodeState(node).kind);
          showNodeActions(cell, node, this.allowed);
        }},
      ],
    });
    this.element = this.table.element;
  }

  update(pool) {
    this.allowed = pool.may_act;
    this.table.update(pool.nodes);
  }
}

function progressText(run) {
  if (run.tasks > 0) return `${run.tasks_done}/${run.tasks} tasks`;
  return run.steps > 0 ? `${countText(run.step)} of ${countText(run.steps)}` : countText(run.step);
}

function runsTable(label, rows, empty, extra = []) {
  return new PagedTable({
    label, rows, empty, keyOf: (run) => run.run,
    searched: (run) => `${run.run} ${run.name} ${run.submitter} ${run.state} ${run.detail}`,
    columns: [
      ...extra,
      {title: 'run', cell: (cell, run) => showRunLink(cell, run.run, run.run)},
      {title: 'name', class: 'name', cell: (cell, run) => showRunLink(cell, run.run, run.name)},
      {title: 'state', class: 'state-cell', cell: (cell, run) => showState(cell, runState(run))},
      {title: 'step', class: 'number', cell: (cell, run) => setText(cell, progressText(run))},
      {title: 'nodes', class: 'number wide', cell: (cell, run) => setText(cell, run.nodes.length)},
      {title: 'rate', class: 'number mid', cell: (cell, run) => setText(cell, hasEnded(run) ? '' : rateText(run.samples_per_second))},
      {title: 'time left', class: 'number mid', cell: (cell, run) => setText(cell, run.seconds_left > 0 && !hasEnded(run) ? durationText(run.seconds_left) : '')},
      {title: 'user', class: 'wider', cell: (cell, run) => setText(cell, run.submitter)},
      {title: 'submitted', class: 'wide', cell: (cell, run) => setText(cell, run.submitted ? timeText(run.submitted) : '')},
      {title: 'took', class: 'number wider', cell: (cell, run) => setText(cell, durationText(run.seconds))},
    ],
  });
}

// Asks what the nodes did over time, once an interval.
class NodeHistory {
  constructor() {
    this.map = new HeatMap();
    this.element = make('section', {class: 'whole', 'aria-label': 'Nodes over time'}, make('h2', {}, 'Nodes over time'), this.map.element);
    this.due = 0;
  }

  async tick() {
    if (performance.now() < this.due) return;
    const history = await get('api/history');
    this.due = performance.now() + 1000 * Math.max(2, history.interval_seconds);
    this.map.update(history);
  }
}

const section = (title, ...children) => make('section', {'aria-label': title}, make('h2', {}, title), ...children);

export function poolLine(pool) {
  const of = (state) => pool.runs.filter((run) => run.state === state).length;
  const parts = [nodesText(pool.nodes), `${of('running')} runs at work`, `${pool.runs.filter(waits).length} waiting`];
  const rate = pool.runs.filter((run) => run.state === 'running').reduce((sum, run) => sum + (run.samples_per_second ?? 0), 0);
  if (rate > 0) parts.push(rateText(rate));
  return parts.join(' · ');
}

export class PoolView {
  title = 'Pool';

  constructor() {
    this.line = make('p', {class: 'line'});
    this.warning = make('p', {class: 'warn'});
    this.nodes = new NodesTable(25);
    this.runs = runsTable('runs at work', 10, 'no run is at work');
    this.queue = runsTable('queue', 10, 'no run waits');
    this.history = new NodeHistory();
    this.element = make('div', {}, make('h1', {}, 'Pool'), this.line, this.warning, make('div', {class: 'grid'},
        section('Runs at work', this.runs.element), section('Queue, and what each run waits for', this.queue.element),
        make('section', {class: 'whole', 'aria-label': 'Nodes'}, make('h2', {}, 'Nodes'), this.nodes.element),
        this.history.element));
  }

  update(pool) {
    setText(this.line, poolLine(pool));
    setText(this.warning, pool.scheduler.address && !pool.scheduler.keeps_state ?
        'This scheduler keeps no state: when it ends, it forgets all runs. Start it with --state FOLDER.' : '');
    this.nodes.update(pool);
    this.runs.update(pool.runs.filter((run) => run.state === 'running' || run.state === 'stopping'));
    const last = Number.MAX_SAFE_INTEGER;  // a run without a place is about to go on
    this.queue.update(pool.runs.filter(waits).sort((a, b) => (a.queue_place || last) - (b.queue_place || last) || a.run - b.run));
  }

  tick() {
    return this.history.tick();
  }
}

export class NodesView {
  title = 'Nodes';

  constructor() {
    this.line = make('p', {class: 'line'});
    this.nodes = new NodesTable(50);
    this.history = new NodeHistory();
    this.element = make('div', {}, make('h1', {}, 'Nodes'), this.line, make('div', {class: 'grid'},
        make('section', {class: 'whole', 'aria-label': 'Nodes'}, this.nodes.element),
        this.history.element));
  }

  update(pool) {
    setText(this.line, nodesText(pool.nodes));
    this.nodes.update(pool);
  }

  tick() {
    return this.history.tick();
  }
}

const kMostCompared = 6;

export class RunsView {
  title = 'Runs';

  constructor() {
    this.chosen = new Set();
    this.compare = make('button', {type: 'button', disabled: true, onclick: () => {
      location.hash = `#/compare?runs=${[...this.chosen].join(',')}`;
    }}, 'Compare');
    this.line = make('p', {class: 'line'});
    this.runs = runsTable('runs', 50, 'no runs: modelet submit sends one', [{title: make('span', {class: 'unseen'}, 'compare'), cell: (cell, run) => {
      if (!cell.firstChild) cell.append(make('input', {type: 'checkbox', 'aria-label': `Compare run ${run.run}`, onchange: (event) => this.choose(run.run, event.target.checked)}));
      cell.firstChild.checked = this.chosen.has(run.run);
    }}]);
    this.element = make('div', {}, make('h1', {}, 'Runs'), this.line, section('All runs', make('div', {class: 'actions'}, this.compare), this.runs.element));
  }

  choose(run, chosen) {
    if (chosen) this.chosen.add(run);
    else this.chosen.delete(run);
    if (this.chosen.size > kMostCompared) this.chosen.delete([...this.chosen][0]);
    this.runs.update(this.runs.items);
    this.compare.disabled = this.chosen.size < 2;
    setText(this.compare, this.chosen.size ? `Compare ${this.chosen.size} runs` : 'Compare');
  }

  update(pool) {
    const total = pool.runs_total ?? pool.runs.length;
    setText(this.line, `${countText(total)} runs` + (total > pool.runs.length ? `, the newest ${countText(pool.runs.length)} here` : ''));
    this.runs.update(pool.runs);
  }
}

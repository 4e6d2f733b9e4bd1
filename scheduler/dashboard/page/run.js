// The view of one run: figures, curves, events, times and placement of its nodes, logs, settings.
import {get, Source} from './api.js';
import {make, reconcile, setAttribute, setText, show} from './dom.js';
import {Facts, Placement, progressFacts, RunCharts} from './parts.js';
import {actionButton} from './pool.js';
import {RunSeries, straggler} from './series.js';
import {hasEnded, runState} from './states.js';
import {countText, NOTHING, percentText, timeText} from './text.js';

const kLogCharacters = 256 << 10;

export class RunView {
  constructor(id) {
    this.id = id;
    this.title = `Run ${id}`;
    this.path = `api/runs/${id}`;
    this.series = new RunSeries();
    this.charts = new RunCharts();
    this.snapshots = [];  // marks of stable snapshots that this page has seen come
    this.next = 0;
    this.details = new Source(this.path);
    this.heading = make('h1', {}, this.title);
    this.state = make('span', {class: 'state'});
    this.why = make('span');
    this.stop = actionButton('Stop', `Stop run ${id}, with a checkpoint?`, `${this.path}/stop`);
    this.facts = new Facts();
    this.placement = new Placement();
    this.experiment = make('pre', {tabindex: 0});
    this.node = make('select', {'aria-label': 'node whose log is shown', onchange: () => this.openLog()});
    this.log = make('pre', {tabindex: 0, role: 'region', 'aria-label': 'log'});
    this.logs = make('details', {ontoggle: () => this.openLog()}, make('summary', {}, 'Logs'), make('label', {}, 'node ', this.node), this.log);
    this.slow = make('p', {class: 'warn'});
    const {loss, metrics, rate, timeline, times} = this.charts;
    const part = (title, ...children) => make('section', {'aria-label': title}, make('h2', {}, title), ...children);
    const whole = (title, ...children) => {
      const made = part(title, ...children);
      made.className = 'whole';
      return made;
    };
    this.element = make('div', {}, this.heading, make('p', {class: 'line'}, this.state, ' ', this.why), make('div', {class: 'actions'}, this.stop),
        make('div', {class: 'grid'}, whole('Figures', this.facts.element),
             make('section', {'aria-label': 'Loss'}, loss.element), make('section', {'aria-label': 'Precision'}, metrics.element),
             whole('Events', timeline.element),
             part('Time of each node in a step', this.slow, times.element), make('section', {'aria-label': 'Samples a second'}, rate.element),
             whole('Placement of modelets', this.placement.element), whole('Logs of nodes', this.logs),
             whole('Settings', make('details', {}, make('summary', {}, 'Experiment'), this.experiment))));
  }

  // What the pool says of the run.
  update(pool) {
    const run = pool.runs.find((each) => each.run === this.id) ?? this.run;
    if (!run) return;
    const before = this.run;
    this.run = run;
    setText(this.heading, `Run ${this.id}: ${run.name}`);
    const {word, sign, tone, why} = runState(run);
    setAttribute(this.state, 'class', `state ${tone}`);
    setAttribute(this.state, 'data-sign', sign);
    setText(this.state, word);
    setText(this.why, [why, this.series.doing].filter(Boolean).join('; '));
    show(this.stop, pool.may_act && !hasEnded(run) && run.state !== 'stopping');
    if (before && run.stable_step > before.stable_step)
      this.snapshots.push({kind: 'snapshot', time: Date.now(), step: run.stable_step, text: `snapshot of step ${run.stable_step} is stable`});
    if (!before || before.epoch !== run.epoch || before.state !== run.state) this.detailsDue = true;
    this.showFacts();
  }

  showFacts() {
    const {run, series} = this;
    const more = run ? [['submitted', run.submitted ? timeText(run.submitted) : NOTHING], ['by', run.submitter || NOTHING],
                        ['nodes', run.nodes.join(', ') || NOTHING], ['stable snapshot', run.stable_step ? `step ${countText(run.stable_step)}` : NOTHING],
                        ['recoveries', run.recoveries], ['re-plans', run.replans]] : [];
    this.facts.update([...progressFacts(series), ...more.filter(([, text]) => text !== NOTHING)]);
    this.charts.update(series, this.snapshots);
    const slow = straggler(series.times);
    setText(this.slow, slow ? `${slow.node} is the slowest: ${percentText(slow.excess, 0)} longer than the others` : '');
  }

  // Brings what is new. Called again and again while the view is shown.
  async tick() {
    if (this.detailsDue) {
      this.detailsDue = false;
      this.showDetails(await this.details.get());
    }
    const ended = this.run && hasEnded(this.run);
    if (!ended || !this.complete) {
      const {events, next, complete} = await get(`${this.path}/events?after=${this.next}`);
      this.complete = complete && events.length === 0;
      if (events.length) {
        this.series.add(events);
        this.next = next;
        this.showFacts();
        this.moreAtOnce = true;
      } else {
        this.moreAtOnce = false;
      }
    } else {
      this.moreAtOnce = false;
    }
    if (this.logs.open && this.logNode !== undefined) await this.readLog();
  }

  showDetails(details) {
    if (!details) return;
    this.run ??= details.run;
    setText(this.experiment, details.experiment ?? '');
    this.placement.update(details.placement);
    this.showNodes();
  }

  showNodes() {
    const names = [...new Set([...(this.run?.nodes ?? []), ...(this.series.times ?? []).map((each) => each.node)])].sort();
    reconcile(this.node, names, (name) => name, (name) => make('option', {value: name}, name), () => {});
  }

  openLog() {
    this.showNodes();
    if (!this.logs.open || this.logNode === this.node.value) return;
    this.logNode = this.node.value;
    this.logNext = 0;
    this.log.textContent = '';
    this.logFound = false;
    if (this.logNode) this.readLog().catch((error) => setText(this.log, error.message));
  }

  async readLog() {
    const node = this.logNode;
    if (!node) return;
    let found = {text: '', next: this.logNext};
    try {
      found = await get(`${this.path}/logs/${encodeURIComponent(node)}?after=${this.logNext}`);
    } catch (error) {
      if (error.status !== 404) throw error;  // it has logged nothing yet
    }
    if (node !== this.logNode) return;
    const {text, next} = found;
    this.logNext = next;
    if (!text) {
      if (!this.logFound) setText(this.log, 'nothing logged yet');
      return;
    }
    const atEnd = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 8;
    const kept = ((this.logFound ? this.log.textContent : '') + text).slice(-kLogCharacters);
    this.logFound = true;
    this.log.textContent = kept;
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }
}

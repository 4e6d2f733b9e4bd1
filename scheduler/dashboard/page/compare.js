// The view that compares runs: their curves in one chart each, their figures, and the settings in which they differ.
import {get} from './api.js';
import {CurveChart} from './charts.js';
import {make, reconcile, setText} from './dom.js';
import {RunSeries} from './series.js';
import {countText, durationText, numberText, percentText, rateText} from './text.js';

const kMost = 6;

// {"section.key": "value"} of an experiment as the programs write it.
export function settingsOf(toml) {
  const settings = new Map();
  let section = '';
  for (const line of (toml ?? '').split('\n')) {
    const header = line.match(/^\[([^\]]+)\]\s*$/), pair = line.match(/^([A-Za-z0-9_]+)\s*=\s*(.*?)\s*(#.*)?$/);
    if (header) section = `${header[1]}.`;
    else if (pair) settings.set(section + pair[1], pair[2]);
  }
  return settings;
}

export class CompareView {
  title = 'Compare';

  constructor(ids) {
    this.runs = ids.slice(0, kMost).map((id) => ({id, series: new RunSeries(), next: 0}));
    this.field = make('input', {value: ids.join(', '), placeholder: '3, 5, 8', 'aria-label': 'numbers of the runs to compare'});
    const form = make('form', {class: 'actions', onsubmit: (event) => {
      event.preventDefault();
      location.hash = `#/compare?runs=${(this.field.value.match(/\d+/g) ?? []).join(',')}`;
    }}, make('label', {}, 'runs ', this.field), make('button', {}, 'Compare'));
    this.note = make('p', {class: 'none'}, ids.length ? '' : `Name up to ${kMost} runs, or choose them in the list of runs.`);
    this.loss = new CurveChart({title: 'Loss'});
    this.precision = new CurveChart({title: 'P@1', format: (value) => percentText(value)});
    this.rate = new CurveChart({title: 'Samples a second', format: countText});
    this.head = make('tr');
    this.figures = make('tbody');
    this.settings = make('tbody');
    const table = (label, ...parts) => make('table', {'aria-label': label}, ...parts);
    const section = (title, ...children) => make('section', {'aria-label': title}, ...children);
    this.settingsHead = make('tr');
    this.element = make('div', {}, make('h1', {}, 'Compare runs'), form, this.note, make('div', {class: 'grid'},
        section('Loss', this.loss.element), section('P@1', this.precision.element), section('Samples a second', this.rate.element),
        section('Figures', make('h2', {}, 'Figures'), table('figures', make('thead', {}, this.head), this.figures)),
        section('Settings in which they differ', make('h2', {}, 'Settings in which they differ'),
                table('settings in which they differ', make('thead', {}, this.settingsHead), this.settings))));
  }

  update(pool) {
    for (const run of this.runs) run.status = pool.runs.find((each) => each.run === run.id) ?? run.status;
  }

  name(run) {
    return `${run.id} ${run.status?.name ?? ''}`.trim();
  }

  async tick() {
    this.moreAtOnce = false;
    for (const run of this.runs) {
      if (run.error) continue;
      try {
        if (!run.details) {
          run.details = await get(`api/runs/${run.id}`);
          run.status ??= run.details.run;
        }
        if (run.complete) continue;
        const {events, next, complete} = await get(`api/runs/${run.id}/events?after=${run.next}`);
        run.series.add(events);
        run.next = next;
        run.complete = complete && events.length === 0;
        this.moreAtOnce ||= events.length > 0;
      } catch (error) {
        if (!error.status) throw error;
        run.error = `run ${run.id}: ${error.message}`;
      }
    }
    this.draw();
  }

  draw() {
    const runs = this.runs.filter((run) => run.details);
    const named = (curve, run) => curve && {title: this.name(run), xs: curve.xs, ys: curve.ys};
    const errors = this.runs.map((run) => run.error).filter(Boolean);
    if (this.runs.length) setText(this.note, errors.join('; '));
    this.loss.update(runs.map((run) => named(run.series.loss, run)));
    this.precision.update(runs.map((run) => named(run.series.metrics.get('P@1') ?? run.series.metrics.get('held-out P@1'), run)).filter(Boolean));
    this.rate.update(runs.map((run) => named(run.series.rate, run)));
    for (const [head, first] of [[this.head, 'figure'], [this.settingsHead, 'setting']])
      reconcile(head, [first, ...runs.map((run) => this.name(run))], (text) => text, () => make('th', {scope: 'col'}), setText);
    const rows = (body, facts) => reconcile(body, facts, ([title]) => title, ([title]) => make('tr', {}, make('th', {scope: 'row'}, title)),
        (row, [, ...texts]) => reconcile(row, [row.firstChild, ...texts.map((text, at) => ({text, at}))], (cell) => cell.at ?? 'title',
            (cell) => (cell.at === undefined ? cell : make('td')), (element, cell) => cell.at !== undefined && setText(element, cell.text)));
    const of = (title, value) => [title, ...runs.map((run) => value(run.series, run))];
    rows(this.figures, [
      of('state', (_, run) => run.status?.state ?? ''),
      of('steps', (series) => countText(series.progress?.step)),
      of('loss', (series) => numberText(series.loss.last)),
      ...['P@1', 'P@3', 'P@5'].map((title) => of(title, (series) => percentText((series.metrics.get(title) ?? series.metrics.get(`held-out ${title}`))?.last))),
      of('trained for', (series) => durationText(series.progress?.train_seconds)),
      of('rate', (series) => rateText(series.progress?.samples_per_second)),
      of('nodes', (series) => countText(series.started?.nodes)),
      of('parameters', (series) => countText(series.started?.parameters)),
    ]);
    const settings = runs.map((run) => (run.settings ??= settingsOf(run.details.experiment)));
    const keys = [...new Set(settings.flatMap((each) => [...each.keys()]))];
    rows(this.settings, keys.filter((key) => new Set(settings.map((each) => each.get(key))).size > 1)
        .map((key) => [key, ...settings.map((each) => each.get(key) ?? '')]));
  }
}

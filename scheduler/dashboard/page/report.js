// The report of a run (modelet report): the same drawings as on the page, from data that is in the file itself. The
// program writes this file and those that it names into one script, so their names at the top level must differ.
import {make} from './dom.js';
import {Facts, progressFacts, RunCharts} from './parts.js';
import {RunSeries} from './series.js';
import {bytesText, countText, numberText, percentText, timeText} from './text.js';

const report = JSON.parse(document.getElementById('report').textContent);

function part(title, ...children) {
  return make('section', {class: 'whole', 'aria-label': title}, make('h2', {}, title), ...children);
}

function tableOf(label, titles, rows) {
  return make('table', {'aria-label': label}, make('thead', {}, make('tr', {}, ...titles.map((title) => make('th', {scope: 'col'}, title)))),
              make('tbody', {}, ...rows.map((row) => make('tr', {}, ...row.map((cell, at) => make('td', {class: at === 0 ? 'name' : null}, cell))))));
}

const nameOf = (label) => label.name ?? `label ${label.label}`;

function finalFacts({end}) {
  const facts = [];
  for (const [name, title] of [['ndcg', 'nDCG'], ['psp', 'PSP'], ['recall', 'recall']])
    if (end?.[`${name}_at_1`] !== undefined)
      facts.push([`${title}@1, 3, 5`, [1, 3, 5].map((k) => percentText(end[`${name}_at_${k}`])).join(', ')]);
  if (end?.auc !== undefined) facts.push(['AUC, log-loss', `${numberText(end.auc)}, ${numberText(end.log_loss)}`]);
  if (end?.peak_rss_bytes) facts.push(['most memory of a process', bytesText(end.peak_rss_bytes)]);
  return facts;
}

function answers(wrong) {
  const list = (labels, sign) => make('ul', {class: 'labels'}, ...labels.map((label) => make('li', {class: sign(label) ? 'hit' : null},
      `${sign(label) ? '✓ ' : ''}${nameOf(label)}${label.score === undefined ? '' : ` ${numberText(label.score, 3)}`}`)));
  return make('div', {class: 'grid'}, ...wrong.map((sample) => make('article', {class: 'answer', 'aria-label': `sample ${sample.sample}`},
      make('h3', {}, `Sample ${countText(sample.sample)}`), make('p', {class: 'note'}, 'true'), list(sample.truth, () => false),
      make('p', {class: 'note'}, 'predicted, best first'), list(sample.predicted, (label) => label.right))));
}

function showReport() {
  const series = new RunSeries(), facts = new Facts(), charts = new RunCharts();
  series.add(report.events);
  const {end} = series;
  const state = end ? {finished: 'finished', interrupted: 'stopped', failed: `failed: ${end.error}`}[end.event] : 'has not ended';
  document.title = `${report.name} – Modelet`;
  const grid = make('div', {class: 'grid'}, part('Figures', facts.element),
      make('section', {'aria-label': 'Loss'}, charts.loss.element), make('section', {'aria-label': 'Precision'}, charts.metrics.element),
      part('Events', charts.timeline.element),
      make('section', {'aria-label': 'Time of each node in a step'}, make('h2', {}, 'Time of each node in a step'), charts.times.element),
      make('section', {'aria-label': 'Samples a second'}, charts.rate.element));
  if (report.layers.length)
    grid.append(part('Placement', make('p', {class: 'note'}, report.nodes.length ? `on ${report.nodes.join(', ')}` : 'on one node'),
        tableOf('modelets of each layer', ['layer', 'modelets', 'neurons', 'bytes'],
                report.layers.map((layer) => [layer.layer, countText(layer.modelets), countText(layer.neurons), bytesText(layer.bytes)]))));
  if (report.judged) {
    const {judged} = report;
    grid.append(part('Hardest labels', make('p', {class: 'note'},
        `Of the labels that at least ${judged.fewest_samples} of ${countText(judged.samples)} test samples have: those that are least often among the best ${judged.depth} answers.`),
        tableOf('hardest labels', ['label', 'test samples', `found among the best ${judged.depth}`],
                judged.hardest.map((label) => [nameOf(label), countText(label.samples), percentText(label.recall)]))));
    grid.append(part('Wrong predictions', make('p', {class: 'note'},
        `The best answer is no label of ${countText(judged.wrong_samples)} of ${countText(judged.samples)} test samples. Some of them (✓: right):`), answers(judged.wrong)));
  }
  if (report.note) grid.append(part('Not in this report', make('p', {}, report.note)));
  grid.append(part('Settings', make('pre', {tabindex: 0}, report.experiment)));
  document.getElementById('main').replaceChildren(make('h1', {}, report.name), make('p', {class: 'line'}, state),
      make('p', {class: 'note'}, `${report.folder}, written by modelet ${report.version} on ${timeText(report.made)}`), grid);
  facts.update([...progressFacts(series), ...finalFacts(series)]);
  charts.update(series);
}
showReport();

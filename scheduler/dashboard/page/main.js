// The page: asks the server what there is, again and again, and shows the view that the address names.
import {Source} from './api.js';
import {repaint} from './charts.js';
import {CompareView} from './compare.js';
import {make, setAttribute, setText} from './dom.js';
import {NodesView, PoolView, RunsView} from './pool.js';
import {RunView} from './run.js';
import {durationText} from './text.js';

const kMostRuns = 1000;  // that have ended; the server counts the others
const kPollMs = 1000, kHiddenPollMs = 10000, kMostWaitMs = 10000;

const main = document.getElementById('main');
const connection = document.getElementById('connection');
let view = null, pool = null;

function viewOf(hash) {
  const [path, query] = hash.replace(/^#\/?/, '').split('?');
  const run = path.match(/^runs\/(\d+)$/);
  if (run) return new RunView(Number(run[1]));
  if (path === 'compare') {
    const ids = (new URLSearchParams(query).get('runs') ?? '').match(/\d+/g) ?? [];
    return new CompareView([...new Set(ids.map(Number))]);
  }
  return path === 'nodes' ? new NodesView() : path === 'runs' ? new RunsView() : new PoolView();
}

function open(moveFocus) {
  if (location.hash === '#main') return;  // the link that skips the navigation
  view = viewOf(location.hash);
  document.title = `${view.title} – Modelet`;
  for (const link of document.querySelectorAll('nav a')) {
    const target = link.getAttribute('href').slice(2);
    const here = location.hash.replace(/^#\/?/, '').split(/[/?]/)[0];
    setAttribute(link, 'aria-current', target === here ? 'page' : null);
  }
  main.replaceChildren(view.element);
  if (moveFocus) {
    main.focus();
    scrollTo(0, 0);
  }
  if (pool) update();
  work();
}

function update() {
  const begin = performance.now();
  view.update(pool);
  performance.measure('modelet update', {start: begin});
}

function connected(problem) {
  setText(connection, problem ?? 'live');
  setAttribute(connection, 'class', problem ? 'bad' : null);
}

// Asks for the pool.
const source = new Source(`api/pool?runs=${kMostRuns}`);
let silentSince = null;
async function poll() {
  try {
    const found = await source.get();
    silentSince = null;
    connected(null);
    if (found) {
      pool = found;
      update();
    }
  } catch (error) {
    silentSince ??= Date.now();
    const wait = durationText((Date.now() - silentSince) / 1000);
    connected(error.status === 401 ? 'This page needs a token: open it with ?token=TOKEN at the end of its address' :
              error.status ? error.message : `no connection for ${wait}; shows what was last known`);
  }
  const failed = silentSince ? Math.min(kMostWaitMs, Date.now() - silentSince) : 0;
  setTimeout(poll, document.hidden ? kHiddenPollMs : Math.max(kPollMs, failed));
}

// Lets the view ask for what only it needs. One at a time.
let working = null;
async function work() {
  clearTimeout(working);
  const mine = view;
  let wait = document.hidden ? kHiddenPollMs : kPollMs;
  if (mine.tick) {
    try {
      await mine.tick();
      if (mine.moreAtOnce) wait = 0;
    } catch (error) {
      if (error.status && mine === view) connected(error.message);
    }
  }
  if (mine !== view) return;
  clearTimeout(working);
  working = setTimeout(work, wait);
}

// The theme: as the system, dark or light.
const theme = document.getElementById('theme');
const kThemes = ['', 'dark', 'light'];
function setTheme(name) {
  setAttribute(document.documentElement, 'data-theme', name || null);
  setText(theme, `Theme: ${name || 'as the system'}`);
  repaint();
}
theme.addEventListener('click', () => {
  const name = kThemes[(kThemes.indexOf(document.documentElement.dataset.theme ?? '') + 1) % kThemes.length];
  localStorage.setItem('theme', name);
  setTheme(name);
});
const kept = localStorage.getItem('theme');
setTheme(kThemes.includes(kept) ? kept : '');

addEventListener('hashchange', () => open(true));
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) work();
});
main.replaceChildren(make('p', {class: 'none'}, 'loading'));
open(false);
poll();

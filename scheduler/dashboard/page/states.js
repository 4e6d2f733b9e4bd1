// What states of nodes and runs mean to people: a word, a sign that can be told without colour, and how good it is.

const kRunStates = {
  queued: ['…', ''], forming: ['◔', ''], running: ['▶', 'good'], recovering: ['↻', 'warn'], waiting: ['…', 'warn'],
  stopping: ['◼', 'warn'], finished: ['✓', 'good'], stopped: ['◼', ''], failed: ['✕', 'bad'],
};

export const hasEnded = (run) => ['finished', 'stopped', 'failed'].includes(run.state);
export const waits = (run) => ['queued', 'waiting', 'forming', 'recovering'].includes(run.state);

export function runState(run) {
  const [sign, tone] = kRunStates[run.state] ?? ['?', ''];
  return {word: run.state, sign, tone, why: run.detail};
}

const kNodeStates = {
  free: ['○', ''], training: ['▶', 'good'], drained: ['⊘', 'warn'], drains: ['◐', 'warn'], draining: ['◐', 'warn'],
  leaving: ['↓', 'warn'], lost: ['✕', 'bad'], pending: ['?', 'warn'], suspended: ['‖', 'warn'],
};

// The server says the state in words of which the first one is the kind, such as "lost since 12:03".
export function nodeState(node) {
  const word = node.state || (node.run ? `training ${node.run}` : 'free') + (node.draining ? ', drains' : '');
  const kind = node.draining && node.run === 0 && !node.state ? 'drained' : word.split(/[ ,]/)[0];
  const [sign, tone] = kNodeStates[kind] ?? ['?', ''];
  return {word: kind === 'drained' ? 'drained' : word, kind, sign, tone, why: node.why ?? ''};
}

// "12 nodes: 8 training, 2 free, 1 lost", in the order of the states above.
export function nodesText(nodes) {
  const counts = new Map();
  for (const node of nodes) {
    const {kind} = nodeState(node);
    counts.set(kind, (counts.get(kind) ?? 0) + 1);
  }
  const parts = [...counts].map(([kind, count]) => `${count} ${kind}`);
  return `${nodes.length} ${nodes.length === 1 ? 'node' : 'nodes'}` + (parts.length ? `: ${parts.join(', ')}` : '');
}

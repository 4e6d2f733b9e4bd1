// What states of nodes and runs mean to people: a word, a sign that can be told without colour, and how good it is.
import {durationText} from './text.js';

const kRunStates = {
  queued: ['…', ''], forming: ['◔', ''], running: ['▶', 'good'], recovering: ['↻', 'warn'], waiting: ['…', 'warn'],
  stopping: ['◼', 'warn'], finished: ['✓', 'good'], stopped: ['◼', ''], failed: ['✕', 'bad'],
};

export const hasEnded = (run) => ['finished', 'stopped', 'failed'].includes(run.state);
export const waits = (run) => ['queued', 'waiting', 'forming', 'recovering'].includes(run.state);

export function runState(run) {
  const [sign, tone] = kRunStates[run.state] ?? ['?', ''];
  const place = run.queue_place > 0 ? `place ${run.queue_place} in the queue` : '';
  return {word: run.state, sign, tone, why: [place, run.detail].filter(Boolean).join('; ')};
}

const kNodeStates = {
  free: ['○', ''], training: ['▶', 'good'], suspended: ['‖', 'warn'], draining: ['◐', 'warn'], drained: ['⊘', 'warn'],
  leaving: ['↓', 'warn'], lost: ['✕', 'bad'], pending: ['?', 'warn'],
};

function kindOf(node) {
  if (node.suspended) return 'suspended';
  if (node.state && node.state !== 'free') return node.state;
  // A server that says no more than this.
  return node.draining ? (node.run ? 'draining' : 'drained') : node.run ? 'training' : 'free';
}

export function nodeState(node) {
  const kind = kindOf(node);
  const [sign, tone] = kNodeStates[kind] ?? ['?', ''];
  const word = kind === 'training' ? `training ${node.run}` :
      node.state_seconds > 0 ? `${kind} for ${durationText(node.state_seconds)}` : kind;
  const reasons = [node.suspended && `its owner comes first: ${node.suspended}`, kind !== 'training' && kind !== 'free' && node.why];
  return {word, kind, sign, tone, why: reasons.filter(Boolean).join('; ')};
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

#!/usr/bin/env python3
"""The next item of a session by a network with self-attention and a softmax over all items (SASRec), in PyTorch.

    experiments/baselines/session_network.py --train train_sessions.txt.xz --test test_prefixes.txt.xz --epochs 3

Sessions are text as for data.format = "sessions". The network is that of Kang and McAuley (ICDM 2018): embeddings of items and places,
blocks of causal attention, scores by the items' own embeddings; with the full softmax as its loss, at each place (Klenitskiy and
Vasilev, RecSys 2023). Nothing is chosen by data: give the settings. After each epoch the test data are asked, and a line says how good
the answers are and what training has taken so far, in seconds of processor time without those of the test. Needs torch
(experiments/bench/install_peers.sh torch).
"""

import argparse
import json
import pathlib
import random
import sys
import time

import torch
from session_neighbours import lines_of


class Network(torch.nn.Module):
    """From items [sessions, places], 0 where there is none, to states [sessions, places, width]."""

    def __init__(self, items, places, width, blocks, heads, dropout):
        super().__init__()
        self.items = torch.nn.Embedding(items + 1, width, padding_idx=0)
        self.places = torch.nn.Embedding(places, width)
        for embedding in (self.items, self.places):
            torch.nn.init.normal_(embedding.weight, std=width ** -0.5)
        layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(layer, blocks, torch.nn.LayerNorm(width), enable_nested_tensor=False)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, items):
        # Places count back from a session's end, which is where the next item is asked for; sessions stand at the right.
        places = torch.arange(items.shape[1] - 1, -1, -1)
        states = self.dropout(self.items(items) + self.places(places))
        future = torch.ones(len(places), len(places), dtype=torch.bool).triu(1)
        # An item sees itself, so nobody sees only what is masked.
        masked = future | ((items == 0)[:, None, :] & ~torch.eye(len(places), dtype=torch.bool))
        return self.blocks(states, mask=masked.repeat_interleave(self.blocks.layers[0].self_attn.num_heads, 0))

    def logits(self, states):
        # In bf16, which has instructions of its own; sums are wider.
        return (states.bfloat16() @ self.items.weight[1:].bfloat16().T).float()


def padded(sessions):
    width = max(map(len, sessions))
    return torch.tensor([[0] * (width - len(session)) + session for session in sessions])


def batches(sessions, places, shuffler):
    """Sessions of similar lengths, with about so many places together."""
    order = sorted(range(len(sessions)), key=lambda session: (len(sessions[session]) + shuffler.random(), shuffler.random()))
    found, batch = [], []
    for session in order:
        if batch and (len(batch) + 1) * (len(sessions[session]) - 1) > places:
            found.append(batch)
            batch = []
        batch.append(session)
    found.append(batch)
    shuffler.shuffle(found)
    return found


@torch.no_grad()
def figures(network, questions, k):
    network.eval()
    hits = reciprocal = 0
    asked = sorted((question for question in questions if question[0] and question[1]), key=lambda question: len(question[0]))
    for first in range(0, len(asked), 256):
        part = asked[first:first + 256]
        scores = network.logits(network(padded([before for before, _ in part]))[:, -1])
        targets = torch.tensor([target - 1 for _, target in part])[:, None]
        ranks = (scores > scores.gather(1, targets)).sum(1) + 1
        found = ranks[ranks <= k]
        hits += len(found)
        reciprocal += float((1 / found).sum())
    network.train()
    return {f"recall_at_{k}": hits / len(questions), f"mrr_at_{k}": reciprocal / len(questions)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train", type=pathlib.Path, required=True)
    parser.add_argument("--test", type=pathlib.Path, required=True)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--places", type=int, default=50, help="items of a session that count, the last ones")
    parser.add_argument("--batch", type=int, default=1024, help="places of a step")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    shuffler = random.Random(arguments.seed)
    numbers = {}
    sessions = []
    for line in lines_of(arguments.train):
        session = [numbers.setdefault(item, len(numbers) + 1) for item in line.split()]
        sessions += [session[first:first + arguments.places + 1] for first in range(0, len(session), arguments.places)]
    sessions = [session for session in sessions if len(session) > 1]
    if not sessions:
        sys.exit(f"{arguments.train}: no sessions of two items")
    test = []
    for line in lines_of(arguments.test):
        before, tab, target = line.partition("\t")
        if not tab:
            sys.exit(f"{arguments.test}: items, a tab and the next item are expected, not {line!r}")
        known = [numbers[item] for item in before.split() if item in numbers]
        test.append((known[-arguments.places:], numbers.get(target.strip(), 0)))
    network = Network(len(numbers), arguments.places, arguments.width, arguments.blocks, arguments.heads, arguments.dropout)
    optimizer = torch.optim.Adam(network.parameters(), lr=arguments.learning_rate)
    seconds = 0
    for epoch in range(1, arguments.epochs + 1):
        begin, losses = time.process_time(), []
        for batch in batches(sessions, arguments.batch, shuffler):
            items = padded([sessions[session] for session in batch])
            before, after = items[:, :-1], items[:, 1:]
            asked = before != 0
            logits = network.logits(network(before)[asked])
            loss = torch.nn.functional.cross_entropy(logits, after[asked] - 1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        seconds += time.process_time() - begin
        print(json.dumps({"event": "tested", "epoch": epoch, "loss": round(sum(losses) / len(losses), 4),
                          **figures(network, test, arguments.k), "train_processor_seconds": round(seconds, 1)}), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The next item of a session from the training sessions that are most like it: session nearest neighbours, on one core.

    experiments/baselines/session_neighbours.py --train train_sessions.txt.xz --test test_prefixes.txt.xz

Sessions are text as for data.format = "sessions". Two published methods are run, without the parts that need the time of a session:
V-SKNN (Ludewig and Jannach, UMUAI 2018), and STAN (Garg et al., SIGIR 2019); and, to see how much people come back, a list of the
session's own items, the newest first. Settings are chosen on the last tenth of the training
sessions, whose prefixes are asked of the others, and the best of each method is then tested. Needs only numpy.
"""

import argparse
import dataclasses
import itertools
import json
import lzma
import pathlib
import sys
import time

import numpy as np

HELD_OUT = 0.1  # of the training sessions, the last ones
ASKED = 4000    # prefixes of these, evenly spread


@dataclasses.dataclass(frozen=True)
class Settings:
    method: str
    neighbours: int = 0
    recency: float = 0  # stan: how many items back the weight of an item of the question falls to 1/e
    spread: float = 0   # stan: how far from the item that both have the weight of a neighbour's item does
    idf: bool = False   # vsknn: rare items count more


GRID = [Settings("own"), *(Settings("vsknn", neighbours, idf=idf) for neighbours, idf in itertools.product((100, 500, 1000), (False, True))),
        *(Settings("stan", *values) for values in itertools.product((500, 2000), (1, 2, 4, 8, 16), (0.35, 0.7, 1.5, 5)))]


def lines_of(path):
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


class Neighbours:
    """The sessions, and where each item is in them."""

    def __init__(self, sessions, items):
        self.items, self.sessions = items, len(sessions)
        self.lengths = np.array([len(session) for session in sessions])
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        self.ids = np.fromiter(itertools.chain.from_iterable(sessions), np.int64, self.offsets[-1])
        owner = np.repeat(np.arange(self.sessions), self.lengths)
        place = np.arange(len(self.ids)) - self.offsets[owner]
        # The last place of an item in a session, by item.
        order = np.lexsort((place, owner, self.ids))
        last = np.append((np.diff(self.ids[order]) != 0) | (np.diff(owner[order]) != 0), True)
        order = order[last]
        self.owner, self.place = owner[order], place[order]
        self.starts = np.searchsorted(self.ids[order], np.arange(items + 1))
        self.weight = np.zeros(self.sessions)  # scratch
        self.star = np.zeros(self.sessions, np.int64)
        self.rank = np.zeros(self.sessions)

    def best(self, question, settings, k):
        """The k items with the highest scores that have one, best first. question: at least one item, the last one last."""
        if settings.method == "own":
            return np.array(list(dict.fromkeys(reversed(question)))[:k])
        stan = settings.method == "stan"
        last = {item: at for at, item in enumerate(question, 1)}  # in the order of first occurrence
        found = []
        for item, at in sorted(last.items(), key=lambda entry: entry[1]):
            begin, end = self.starts[item], self.starts[item + 1]
            if begin == end:
                continue
            owner = self.owner[begin:end]
            self.weight[owner] += np.exp((at - len(question)) / settings.recency) if stan else at / len(question)
            self.star[owner] = self.place[begin:end]  # of the last item that both have
            self.rank[owner] = at
            found.append(owner)
        if not found:
            return np.empty(0, np.int64)
        near = np.unique(np.concatenate(found))
        weight = self.weight[near] / np.sqrt(len(last) * self.lengths[near])
        self.weight[near] = 0
        if len(near) > settings.neighbours:
            kept = np.argpartition(-weight, settings.neighbours)[:settings.neighbours]
            near, weight = near[kept], weight[kept]
        if not stan:  # a neighbour counts less if it has only early items of the question
            weight = weight * np.maximum(1 - 0.1 * (len(question) - self.rank[near]), 0)
        lengths = self.lengths[near]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        items = self.ids[np.repeat(self.offsets[near], lengths) + within]
        parts = np.repeat(weight, lengths)
        if stan:
            parts = parts * np.exp(-np.abs(within - np.repeat(self.star[near], lengths)) / settings.spread)
        ids, where = np.unique(items, return_inverse=True)
        scores = np.bincount(where, parts)
        if settings.idf:
            scores *= np.log(self.sessions / np.maximum(np.diff(self.starts)[ids], 1))
        order = np.lexsort((ids, -scores))[:k]
        return ids[order][scores[order] > 0]


def figures(neighbours, questions, settings, k):
    """recall@k and MRR@k of (items before, target)."""
    hits = reciprocal = 0
    for before, target in questions:
        rank = np.flatnonzero(neighbours.best(before, settings, k) == target) if before else ()
        if len(rank):
            hits += 1
            reciprocal += 1 / (rank[0] + 1)
    return {f"recall_at_{k}": hits / len(questions), f"mrr_at_{k}": reciprocal / len(questions)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train", type=pathlib.Path, required=True)
    parser.add_argument("--test", type=pathlib.Path, required=True)
    parser.add_argument("--k", type=int, default=20)
    arguments = parser.parse_args()
    names = {}
    sessions = [[names.setdefault(item, len(names)) for item in line.split()] for line in lines_of(arguments.train)]
    if not names:
        sys.exit(f"{arguments.train}: no sessions")

    def asked_of(line):
        before, tab, after = line.partition("\t")
        before, after = before.split(), after.split()
        if not tab:
            before, after = before[:-1], before[-1:]
        if len(after) != 1:
            sys.exit(f"{arguments.test}: one target is expected in {line!r}")
        return [names[item] for item in before if item in names], names.get(after[0], -1)

    test = [asked_of(line) for line in lines_of(arguments.test)]
    kept = len(sessions) - int(HELD_OUT * len(sessions))
    prefixes = [(session[:end], session[end]) for session in sessions[kept:] for end in range(1, len(session))]
    prefixes = prefixes[::max(1, len(prefixes) // ASKED)]
    index, chosen = Neighbours(sessions[:kept], len(names)), {}
    for settings in GRID if prefixes else ():
        result = figures(index, prefixes, settings, arguments.k)
        print(json.dumps({"event": "held_out", **dataclasses.asdict(settings), **result}), flush=True)
        best = chosen.get(settings.method)
        if best is None or result[f"recall_at_{arguments.k}"] > best[1]:
            chosen[settings.method] = settings, result[f"recall_at_{arguments.k}"]
    for settings, _ in chosen.values():
        begin = time.monotonic()
        index = Neighbours(sessions, len(names))
        fitted = time.monotonic()
        result = figures(index, test, settings, arguments.k)
        print(json.dumps({"event": "tested", **dataclasses.asdict(settings), **result, "fit_seconds": round(fitted - begin, 2),
                          "questions_per_second": round(len(test) / (time.monotonic() - fitted))}), flush=True)


if __name__ == "__main__":
    main()

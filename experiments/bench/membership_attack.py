#!/usr/bin/env python3
"""Guesses from a trained model whether a sample was among those of an owner, and says how often the guess is right.

    membership_attack.py EXPERIMENT.toml --owners owner-0.txt,owner-1.txt,owner-2.txt --others owner-3.txt --noise 0.01,1 --clip 1

The attack takes the samples on which the model's loss is small for members (Yeom et al., "Privacy risk in machine learning: analyzing
the connection to overfitting", CSF 2018). Members are the samples of the first owner. The others must be drawn like them and must not
be trained on: divide one set by chance, with one owner more than take part, and give the file of this one with --others. The area under
the curve of members found against others taken for members is 0.5 if the model tells nothing.

Compared are one model of all owners' samples in one place, masked sums without noise, and masked sums with each --noise. Each owner has
--set train.batch; the model of all has as many times that. The loss of a sample is the mean of -log of the probability of its labels;
labels that are not among the first 1000 predictions count as if they were the last of these.
"""

import argparse
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

import measuring

PREDICTIONS = 1000  # labels of a sample
SAMPLES = 2000      # of members, and of others, that are judged


def log_sigmoid(score):
    return min(score, 0.0) - math.log1p(math.exp(-abs(score)))


def sample_losses(options, run, data):
    """The losses of the first samples of a file."""
    command = [options.modelet, "predict", run, data, "--k", PREDICTIONS, "--limit", options.samples, "--json"]
    predicted = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    with open(data, encoding="utf-8") as file:
        next(file)
        truth = [[int(label) for label in line.split(" ", 1)[0].split(",")] for line, _ in zip(file, range(options.samples))]
    losses = []
    for line, labels in zip(predicted, truth, strict=True):
        scores = {label["label"]: label["score"] for label in json.loads(line)["labels"]}
        least = min(scores.values())
        losses.append(-sum(log_sigmoid(scores.get(label, least)) for label in labels) / len(labels))
    return losses


def area_under_curve(members, others):
    """How likely a member has a smaller loss than another sample; half of the ties count."""
    ranked = sorted([(loss, 0) for loss in members] + [(loss, 1) for loss in others])
    below = area = at = 0
    while at < len(ranked):
        end = at
        while end < len(ranked) and ranked[end][0] == ranked[at][0]:
            end += 1
        of_others = sum(is_other for _, is_other in ranked[at:end])
        of_members = end - at - of_others
        area += of_others * (below + of_members / 2)
        below += of_members
        at = end
    return area / (len(members) * len(others))


def pool(files, out):
    """Writes the samples of all owners to one file."""
    samples, counts = [], None
    for file in files:
        head, *own = pathlib.Path(file).read_text(encoding="utf-8").splitlines()
        counts = head.split()[1:]
        samples += own
    out.write_text("\n".join([" ".join([str(len(samples)), *counts]), *samples]) + "\n", encoding="utf-8")


def attack(options, name, arguments):
    """Trains, and returns the figures of the model and of the attack."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        run = pathlib.Path(folder) / "run"
        settings = [word for key in options.set for word in ("--set", key)]
        finished = measuring.run_json_lines([options.modelet, "train", options.experiment, "--json", "--out", run, *settings, *arguments])[-1]
        members, others = (sample_losses(options, run, file) for file in (options.owners[0], options.others))
        shutil.rmtree(run)
    mean = lambda losses: sum(losses) / len(losses)
    return {"run": name, "p_at_1": finished["p_at_1"], "loss_of_members": mean(members), "loss_of_others": mean(others),
            "area_under_curve": area_under_curve(members, others)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=pathlib.Path)
    parser.add_argument("--owners", required=True, help="files in XMC text, joined by commas; members are the samples of the first")
    parser.add_argument("--others", type=pathlib.Path, required=True, help="samples that are not trained on, drawn like those of the owners")
    parser.add_argument("--noise", default="", help="cluster.noise of further runs, joined by commas")
    parser.add_argument("--clip", default="1", help="cluster.clip of runs with noise (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="samples of an owner in a step (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of members, and of others, that are judged (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of all runs")
    parser.add_argument("--skip-pooled", action="store_true", help="leave out the model of all samples in one place")
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--folder", type=pathlib.Path, help="for the runs (default: that of temporary files)")
    parser.add_argument("--json", type=pathlib.Path, help="file to which each run adds a line")
    options = parser.parse_args()
    measuring.require_modelet(options.modelet)
    given, options.owners = options.owners, options.owners.split(",")
    if len(options.owners) < 2:
        parser.error("--owners: give at least two files")
    of_owners = ["--owners", given, "--set", f"train.batch={options.batch}"]
    runs = [("masked sums", of_owners)]
    runs += [(f"masked sums, noise {noise}", [*of_owners, "--set", f"cluster.noise={noise}", "--set", f"cluster.clip={options.clip}",
                                              "--set", "optimizer.row_clocks=true"])
             for noise in filter(None, options.noise.split(","))]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if not options.skip_pooled:
            pooled = pathlib.Path(folder) / "all.txt"
            pool(options.owners, pooled)
            runs.insert(0, ("all samples in one place",
                            ["--set", f"data.train={pooled}", "--set", f"train.batch={options.batch * len(options.owners)}"]))
        print("| run | P@1 | mean loss of members | of others | area under the curve |\n|---|---|---|---|---|")
        for name, arguments in runs:
            row = attack(options, name, arguments)
            print(f"| {name} | {row['p_at_1']:.4f} | {row['loss_of_members']:.3f} | {row['loss_of_others']:.3f} | "
                  f"{row['area_under_curve']:.3f} |", flush=True)
            if options.json:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

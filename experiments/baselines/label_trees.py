#!/usr/bin/env python3
"""Label trees over linear classifiers, as their authors publish them, each with one call and its defaults.

  parabel    Omikuji: three trees, balanced 2-means (Prabhu et al., WWW 2018)
  bonsai     Omikuji: three shallow trees, k-means with k = 100 (Khandagale et al., 2019), by the settings of Omikuji's documents
  pecos      PECOS: XR-Linear over hierarchical k-means of labels by their positive samples (Yu et al., 2020)
  napkinxc   napkinXC: probabilistic label tree over hierarchical k-means (Jasinska-Kobus et al., 2020)

Run it with a Python that has the system (experiments/bench/install_peers.sh). Reads plain XMC text. PECOS gets rows of length one, as
its documents ask; the others scale rows themselves. Standard output is one JSON object. The logs of the systems go to standard error.
`train_seconds` is the time from data in memory to a model in memory; it includes that napkinXC writes its model to disk, which cannot
be avoided. `predict_seconds` is the time for the five best labels of all test rows; Omikuji's Python interface takes one row at a time.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import resource
import sys
import time

import numpy as np

import xmc

TOP = 5


# ---- the systems: train(...) returns (seconds, function from test rows to labels); it leaves the model in the folder ---------------

def omikuji(arguments, settings):
    import omikuji as system

    parameters = system.Model.default_hyper_param()
    for name, value in settings.items():
        setattr(parameters, name, value)
    # This is Model.train_on_data in two halves, because reading the text does not count.
    threads = system._ThreadPoolHandle(arguments.threads)
    data = system.lib.load_omikuji_data_set(system.ffi.new("char[]", str(arguments.train).encode()), threads.ptr)
    if data == system.ffi.NULL:
        sys.exit(f"Omikuji cannot read {arguments.train}")
    started = time.perf_counter()
    trained = system.lib.train_omikuji_model(data, parameters, threads.ptr)
    seconds = time.perf_counter() - started
    system.lib.free_omikuji_data_set(data)
    if trained == system.ffi.NULL:
        sys.exit("Omikuji has not trained a model")
    model = system.Model(trained)
    model.save(str(arguments.model))
    model.init_prediction_thread_pool(arguments.threads)

    def predict(x):
        for begin, end in zip(x.offsets, x.offsets[1:]):
            yield [label for label, _ in model.predict(list(zip(x.ids[begin:end].tolist(), x.values[begin:end].tolist())), top_k=TOP)]

    return seconds, lambda x: list(predict(x))


def parabel(arguments):
    return omikuji(arguments, {})


def bonsai(arguments):
    return omikuji(arguments, {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3})


def pecos(arguments):
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel
    from sklearn.preprocessing import normalize

    x, y, features = matrices(arguments.train)
    x = normalize(x)
    started = time.perf_counter()
    label_features = LabelEmbeddingFactory.create(y, x, method="pifa", threads=arguments.threads)
    clusters = Indexer.gen(label_features, indexer_type="hierarchicalkmeans", threads=arguments.threads)
    model = XLinearModel.train(x, y, C=clusters, threads=arguments.threads)
    seconds = time.perf_counter() - started
    model.save(str(arguments.model))

    def predict(rows):
        return best_first(model.predict(normalize(matrix(rows, features)), only_topk=TOP, threads=arguments.threads))

    return seconds, predict


def napkinxc(arguments):
    from napkinxc.models import PLT

    x, y, features = matrices(arguments.train)
    labels = [y.indices[begin:end].tolist() for begin, end in zip(y.indptr, y.indptr[1:])]
    model = PLT(str(arguments.model), threads=arguments.threads)
    started = time.perf_counter()
    model.fit(x, labels)
    seconds = time.perf_counter() - started
    model.load()
    return seconds, lambda rows: model.predict(matrix(rows, features), top_k=TOP)


SYSTEMS = {parabel: "omikuji", bonsai: "omikuji", pecos: "libpecos", napkinxc: "napkinxc"}  # the package of each


# ---- rows as scipy has them ----------------------------------------------------------------------------------------

def matrix(rows, width):
    """Returns a sparse matrix in which the ids of each row are sorted."""
    from scipy.sparse import csr_matrix

    values = np.ones(len(rows.ids), np.float32) if rows.values is None else rows.values
    made = csr_matrix((values, rows.ids.astype(np.int32), rows.offsets.astype(np.int32)), shape=(len(rows), width))
    made.sort_indices()
    return made


def matrices(path):
    """Reads (features [N, D], labels [N, L], D)."""
    x, y, features, labels = xmc.read(path)
    return matrix(x, features), matrix(y, labels), features


def best_first(scores):
    """The labels of each row of a sparse matrix of scores, best first."""
    rows = zip(scores.indptr, scores.indptr[1:])
    return [scores.indices[begin:end][np.argsort(-scores.data[begin:end], kind="stable")].tolist() for begin, end in rows]


def main():
    systems = {function.__name__: function for function in SYSTEMS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=systems)
    parser.add_argument("--train", type=pathlib.Path, required=True, help="XMC text, plain")
    parser.add_argument("--test", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="folder to write the model to")
    parser.add_argument("--predictions", type=pathlib.Path, required=True, help="file for the best labels of each test row, a line each")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()

    # The systems draw progress bars on standard output, megabytes of them, also from C and Rust. So only the result gets there.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    arguments.model.mkdir(parents=True, exist_ok=True)
    system = systems[arguments.system]
    train_seconds, predict = system(arguments)
    rows = xmc.read(arguments.test)[0]
    started = time.perf_counter()
    best = predict(rows)
    predict_seconds = time.perf_counter() - started
    xmc.write_predictions(arguments.predictions, best)
    package = SYSTEMS[system]
    print(json.dumps({
        "event": "finished", "system": f"{package} {importlib.metadata.version(package)}", "train_seconds": train_seconds,
        "predict_seconds": predict_seconds, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "model_bytes": sum(file.stat().st_size for file in arguments.model.rglob("*") if file.is_file())}), file=output, flush=True)


if __name__ == "__main__":
    main()

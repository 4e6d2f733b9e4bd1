"""modelet.train, modelet.load and the answers of a model."""
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import scipy.sparse as sp

import modelet
from modelet._progress import Listeners


@pytest.fixture(scope="module")
def run(text_experiment, tmp_path_factory):
    return modelet.train(text_experiment, out=tmp_path_factory.mktemp("runs") / "one")


def test_train_and_load(run, text_experiment):
    assert run.finished["p_at_1"] > 0.9
    model = modelet.load(run.folder)
    assert sorted(model.label_names) == ["bird", "fruit", "tool"]
    labels, scores = model.predict(["owl and wren", "saw"], k=2)
    assert [model.label_names[label] for label in labels[:, 0]] == ["bird", "tool"]
    assert labels.shape == scores.shape == (2, 2) and (scores[:, 0] > scores[:, 1]).all()
    everything = model.scores(["owl and wren", "saw"])
    np.testing.assert_array_equal(np.take_along_axis(everything, labels, 1), scores)
    X, Y = model.read(text_experiment["data.test"])
    assert X.shape == (60, model.features) and (Y.sum(axis=1) == 1).all()
    best, _ = model.predict(X, 1)
    assert np.mean([Y[row, label] for row, label in enumerate(best[:, 0])]) == pytest.approx(run.finished["p_at_1"])


def test_answers_among_some_labels(run):
    model = run.load()
    rows = ["owl and wren", "saw"]
    everything = model.scores(rows)
    allowed = ["tool", "fruit"]
    numbers = sorted(model.label_names.index(name) for name in allowed)
    for among in (allowed, numbers, np.array(numbers)):
        labels, scores = model.predict(rows, k=5, among=among)
        assert labels.shape == (2, 2) and [sorted(row) for row in labels.tolist()] == [numbers, numbers]
        np.testing.assert_allclose(scores, np.take_along_axis(everything, labels, 1), rtol=1e-5)
    threshold = everything.max() - 1e-3
    labels, scores = model.predict(rows, k=3, threshold=threshold)
    assert (labels == -1).sum() == (everything < threshold).sum() and (scores[labels >= 0] >= threshold).all()
    for among, text in ((["fish"], "not among the names"), ([99], "no label 99"), ([-1], "no label -1"), ("tool", "a list of labels")):
        with pytest.raises(modelet.UsageError, match=text):
            model.predict(rows, among=among)


def test_labels_come_and_go(run, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    known = modelet.load(folder)
    samples = tmp_path / "new.txt"
    samples.write_text("__label__mixture owl saw\n" * 5)
    done = modelet.labels.add(folder, samples, threads=1)
    assert (done["what"], done["changed"], done["labels"]) == ("added", 1, 4)
    model = modelet.load(folder)
    assert model.label_names == [*known.label_names, "mixture"]
    assert model.label_names[model.predict(["owl saw"], k=1)[0][0, 0]] == "mixture"
    modelet.labels.rename(folder, "mixture", "blend")
    modelet.labels.remove(modelet.Run(folder, {}), ["bird"])
    model = modelet.load(folder)
    labels, scores = model.predict(["owl and wren"], k=4)
    assert [model.label_names[label] if label >= 0 else None for label in labels[0]].count("bird") == 0
    assert labels[0, 3] == -1 and (labels[0, :3] >= 0).all()
    with pytest.raises(modelet.UsageError, match="not among the names"):
        modelet.labels.remove(folder, ["mixture"])
    corrections = tmp_path / "right.txt"
    corrections.write_text("__label__tool wren saw wren\n" * 3)
    assert modelet.labels.learn(folder, corrections)["changed"] == 1
    assert modelet.load(folder).label_names[modelet.load(folder).predict(["wren saw wren"], k=1)[0][0, 0]] == "tool"
    with pytest.raises(TypeError):
        modelet.labels.remove(folder, "bird")


def test_explanations_add_up(run):
    model = run.load()
    rows = ["owl and wren", "saw"]
    scores = model.scores(rows)
    for row, why in enumerate(model.explain(rows)):
        assert why.label == scores[row].argmax()
        assert why.score == pytest.approx(scores[row, why.label], rel=1e-2)
        assert why.rest + why.shares.sum() == pytest.approx(why.score, rel=1e-9)
        assert set(why.features.tolist()) == set(model.encode(rows)[[row]].indices.tolist())
    against = model.explain(rows, ["tool", "bird"])
    assert [model.label_names[why.label] for why in against] == ["tool", "bird"]
    lines = Path(tomllib.loads(model.experiment)["data"]["train"]).read_text().splitlines()
    for name, (places, cosines) in zip(("tool", "tool"), model.examples(rows, ["tool", "tool"], k=2)):
        assert len(places) == 2 and 0 < cosines[1] <= cosines[0] <= 1.00001
        assert all(lines[place].startswith(f"__label__{name} ") for place in places)
    assert [why.score for why in against] == pytest.approx([scores[0, against[0].label], scores[1, against[1].label]], rel=1e-2, abs=0.02)


def test_scores_are_what_the_weights_say(run):
    model = run.load()
    X = model.encode(["owl and wren", "saw"]).toarray()
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, rtol=1e-5)  # data.normalize
    (W, b), (V, c) = model.layers()
    hidden = np.maximum(X @ W + b, 0)
    np.testing.assert_allclose(model.embed(["owl and wren", "saw"]), hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.scores(["owl and wren", "saw"]), hidden @ V.T + c, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.label_embeddings(), V)


def test_two_nodes(text_experiment, tmp_path):
    events = []
    run = modelet.train(text_experiment, nodes=2, out=tmp_path / "two", callbacks=events.append)
    assert next(event for event in events if event["event"] == "started")["nodes"] == 2
    assert run.finished["p_at_1"] > 0.9


def test_owners(tmp_path):
    for name in ("a", "b", "test"):
        rows = [f"{row % 3} {row % 3}:1 {3 + row % 5}:0.5" for row in range(60)]
        (tmp_path / f"{name}.txt").write_text("\n".join(["60 8 3", *rows]) + "\n")
    keys = {"data.test": tmp_path / "test.txt", "model.hidden": [16], "modelets.hidden_columns": 16, "sampling.mode": "full",
            "train": {"epochs": 5, "batch": 8, "learning_rate": 0.05}}
    events = []
    run = modelet.train(keys, owners=[tmp_path / "a.txt", tmp_path / "b.txt"], out=tmp_path / "run", callbacks=events.append)
    assert next(event for event in events if event["event"] == "started")["replicas"] == 2
    assert run.finished["p_at_1"] > 0.9
    with pytest.raises(modelet.UsageError, match="at least two files"):
        modelet.train(keys, owners=[tmp_path / "a.txt"], out=tmp_path / "no")


def test_errors_say_what_the_program_says(text_experiment, tmp_path):
    with pytest.raises(modelet.UsageError, match="train.epochs"):
        modelet.train(text_experiment, settings={"train.epochs": 0}, out=tmp_path / "no")
    with pytest.raises(modelet.UsageError):
        modelet.load(tmp_path)
    with pytest.raises(modelet.UsageError, match="not trained on a table"):
        modelet.train(text_experiment, out=tmp_path / "text").load().predict([{"text": "owl"}])
    with pytest.raises(modelet.UsageError, match="features"):
        modelet.train(text_experiment, out=tmp_path / "yes").load().predict(np.ones((1, 3)))
    with pytest.raises(modelet.UsageError, match="nowhere.toml"):  # not only where to find help
        modelet.train("nowhere.toml")
    with pytest.raises(modelet.UsageError, match="nodes"):
        modelet.train(text_experiment, nodes=0, out=tmp_path / "no")
    with pytest.raises(modelet.Error, match="^x+: File name too long$"):  # what the system says
        modelet.load("x" * 300)


def test_the_end_is_quiet(run):
    """What still holds a model when Python ends is the user's affair, and no leak to warn of."""
    program = ("import ctypes, modelet, sys; model = modelet.load(sys.argv[1]); "
               "ctypes.pythonapi.Py_IncRef(ctypes.py_object(model._native))")
    ended = subprocess.run([sys.executable, "-c", program, str(run.folder)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_paths_of_every_kind(text_experiment, tmp_path):
    folder = tmp_path / "\N{PEAR} \"quoted\" \\t"
    folder.mkdir()
    paths = {key: folder / Path(text_experiment[key]).name for key in ("data.train", "data.test")}
    for key, path in paths.items():
        shutil.copy(text_experiment[key], path)
    run = modelet.train({**text_experiment, **paths}, settings={"train.epochs": np.int64(1)}, out=tmp_path / "run")
    assert run.finished["p_at_1"] > 0
    with pytest.raises(modelet.UsageError, match="control character"):
        modelet.train({**text_experiment, "data.train": tmp_path / "\x7f"}, out=tmp_path / "no")


def test_texts_are_read_as_the_programs_read_them(run, tmp_path):
    model = run.load()
    for text in ("apple\u2028plum", "apple\x85plum", "apple\x1cplum", "apple plum"):  # none of these ends a line
        (tmp_path / "text.txt").write_text(f"__label__fruit {text}\n", newline="\n")
        assert (model.encode([text]) != model.read(tmp_path / "text.txt")[0]).nnz == 0
    np.testing.assert_array_equal(model.scores(["apple\r\nplum"]), model.scores(["apple  plum"]))
    texts = ["owl", "saw"]
    np.testing.assert_array_equal(model.scores(np.array(texts)), model.scores(texts))
    assert model.scores([]).shape == (0, 3) and model.predict([], k=2)[0].shape == (0, 2)


def test_names_of_any_bytes(tmp_path):
    lines = b"__label__caf\xe9 un deux\n__label__th\xc3\xa9 trois quatre\n" * 100
    (tmp_path / "train.txt").write_bytes(lines)
    keys = {"data.train": str(tmp_path / "train.txt"), "data.test": str(tmp_path / "train.txt"), "sampling.mode": "full", "model.hidden": [16],
            "modelets.hidden_columns": 16, "train": {"epochs": 5, "learning_rate": 0.01, "batch": 16, "threads": 1}}
    model = modelet.train(keys, out=tmp_path / "run").load()
    assert set(map(os.fsencode, model.label_names)) == {b"caf\xe9", b"th\xc3\xa9"}
    assert model.neighbours("caf\udce9")[0][0] == "th\xe9"
    labels, _ = model.predict(["un deux \udce9", "trois"], k=1)
    assert [model.label_names[label] for label in labels[:, 0]] == ["caf\udce9", "th\xe9"]


def test_the_bar_shows_steps_and_figures(capsys):
    with Listeners(None, progress=True) as listeners:
        listeners({"event": "preparing"})
        listeners({"event": "started", "steps": 10, "step": 2})
        listeners({"event": "progress", "step": 4, "loss": 0.25})
        listeners({"event": "epoch", "step": 5, "loss": 0.5, "p_at_1": 0.75})
        shown = capsys.readouterr().err
        assert all(text in shown for text in ("2/10", "loss=0.2500", "5/10", "P@1=0.7500"))
        listeners({"event": "finished", "steps": 10})
    assert "10/10" in capsys.readouterr().err
    assert Listeners(None, progress=False)._bar is None and Listeners(None, progress="auto")._bar is None  # no terminal


def test_neighbours_of_words(tmp_path):
    (tmp_path / "words.txt").write_text("one two three\nfour five six\n" * 200)
    keys = {"data": {"train": str(tmp_path / "words.txt"), "test": str(tmp_path / "words.txt"), "format": "words"},
            "words": {"min_count": 1, "subsample": 0}, "sampling.mode": "full", "train": {"epochs": 20, "learning_rate": 0.02, "batch": 64, "threads": 1},
            "model.hidden": [16], "modelets.hidden_columns": 16}
    model = modelet.train(keys, out=tmp_path / "run").load()
    assert sorted(model.words()) == ["five", "four", "one", "six", "three", "two"]
    assert {word for word, _ in model.neighbours("one", 2)} == {"two", "three"}
    number = model.label_names.index
    assert {word for word, _ in model.neighbours(number("one"), 2)} == {number("two"), number("three")}
    with pytest.raises(modelet.UsageError, match="not among"):
        model.neighbours("seven")
    labels, _ = model.predict(["one", "four six", "", "seven"], k=2)  # each text is a question: which words are around it?
    assert labels.shape == (4, 2) and set(labels[0]) == {number("two"), number("three")} and number("five") in labels[1]


def test_threads_and_signals_share_a_model(tmp_path):
    (tmp_path / "words.txt").write_text("one two three\nfour five six\n" * 50)
    script = f'''
import os, signal, sys, threading
import modelet
data = {str(tmp_path / "words.txt")!r}
model = modelet.train({{"data": {{"train": data, "test": data, "format": "words"}}, "words": {{"min_count": 1, "subsample": 0}},
                       "train": {{"epochs": 1, "threads": 2}}, "model.hidden": [16], "modelets.hidden_columns": 16}},
                      out={str(tmp_path / "run")!r}, progress=False).load()
questions = model.encode(["one", "four"] * 20000)  # many batches
done = threading.Event()

def look():
    while not done.is_set():
        assert len(model.words()) == 6 and model.neighbours(0, 2)

def handler(*_):
    assert model.predict(["one"], 1)[0].shape == (1, 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if model.predict(["one"], 1)[0].shape == (1, 1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    handled.append(1)

handled = []
thread = threading.Thread(target=look)
thread.start()
assert model.predict(questions, 1)[0].shape == (40000, 1)
done.set()
thread.join()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
while not handled:
    model.predict(questions, 1)
'''
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_neighbours_of_labels(run, many_labels):
    model = run.load()
    (nearest, cosine), (_, less) = model.neighbours("bird", 5)
    fruit, tool, bird = (model.label_embeddings()[model.label_names.index(name)] for name in ("fruit", "tool", "bird"))
    cosines = {name: other @ bird / np.linalg.norm(other) / np.linalg.norm(bird) for name, other in (("fruit", fruit), ("tool", tool))}
    assert nearest == max(cosines, key=cosines.get) and cosine >= less
    assert (cosine, less) == pytest.approx(sorted(cosines.values(), reverse=True), abs=1e-5)
    with pytest.raises(modelet.UsageError, match="'brid' is not among the names of the 3 labels"):
        model.neighbours("brid")

    X, Y, _, _ = many_labels  # labels without names; those of a pair occur with the same rows
    pairs = sp.hstack([Y, Y], format="csr")
    model = modelet.fit(X, pairs, epochs=5, random_state=0, threads=1).model_
    assert [model.neighbours(label, 1)[0][0] for label in range(Y.shape[1])] == [label + Y.shape[1] for label in range(Y.shape[1])]
    assert len(model.neighbours(np.int64(3), 7)) == 7
    with pytest.raises(modelet.UsageError, match="labels have no names"):
        model.neighbours("bird")
    with pytest.raises(modelet.UsageError, match="no label 80; the model has 80"):
        model.neighbours(80)


def test_rows_of_a_table(tmp_path):
    lines = ["kind,text,other"] + ["a,\"one, two\",x", "b,three four,y"] * 100
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    keys = {"data": {"train": str(tmp_path / "train.csv"), "test": str(tmp_path / "train.csv"), "format": "csv"},
            "csv": {"labels": "kind", "text": ["text"]}, "sampling.mode": "full", "model.hidden": [16],
            "modelets.hidden_columns": 16, "train": {"epochs": 10, "learning_rate": 0.01, "batch": 16, "threads": 1}}
    model = modelet.train(keys, out=tmp_path / "run").load()
    labels, _ = model.predict([{"text": "\"three, four"}, {"text": "two\nwords", "other": "z"}], k=1)
    assert [model.label_names[label] for label in labels[:, 0]] == ["b", "a"]


def test_rows_of_a_table_without_quotes(tmp_path):
    lines = ["kind\ttext"] + ["a\tsay \"one\" two", "b\tthree \"four\""] * 100
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    keys = {"data": {"train": str(tmp_path / "train.tsv"), "test": str(tmp_path / "train.tsv"), "format": "csv"},
            "csv": {"delimiter": "tab", "labels": "kind", "text": ["text"]}, "sampling.mode": "full", "model.hidden": [16],
            "modelets.hidden_columns": 16, "train": {"epochs": 1, "batch": 16, "threads": 1}}
    model = modelet.train(keys, out=tmp_path / "run").load()
    X = model.encode([MappingProxyType({"text": "say \"one\" two"}), {"text": "three\n\"four\""}])
    assert (X != model.read(tmp_path / "train.tsv")[0][:2]).nnz == 0


def test_rows_of_click_logs(tmp_path):
    def line(click, number, category):
        return "\t".join([str(click), str(number)] + [""] * 12 + [category] + [""] * 25)

    (tmp_path / "train.tsv").write_text("".join(f"{line(1, 5, 'a')}\n{line(0, 5, 'b')}\n" for _ in range(200)))
    keys = {"data": {"train": str(tmp_path / "train.tsv"), "test": str(tmp_path / "train.tsv"), "format": "criteo"}, "table.hash_features": 1024,
            "sampling.mode": "full", "model.hidden": [16], "modelets.hidden_columns": 16,
            "train": {"epochs": 10, "learning_rate": 0.01, "batch": 16, "threads": 1}}
    model = modelet.train(keys, out=tmp_path / "run").load()
    _, scores = model.predict([{"c1": "a", "i1": 5}, {"i1": 5, "c1": "b"}], k=1)
    assert scores[0, 0] > scores[1, 0] + 1
    with pytest.raises(modelet.UsageError, match="no column 'c27'; it has i1, i2"):
        model.predict([{"c27": "a"}])


# Each of these is a program that gets Ctrl-C once its training has begun.
IN_MEMORY = """
import numpy as np, modelet
X = np.random.default_rng(0).random((500, 20)); y = np.arange(500) % 5
classifier = modelet.Classifier(epochs=100000, threads=1, callbacks=lambda e: print(e["event"], flush=True))
try:
    classifier.fit(X, y)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""
BY_PROGRAM = """
import sys, modelet
try:
    modelet.train(eval(sys.argv[1]), settings={"train.epochs": 100000}, out=sys.argv[2],
                  callbacks=lambda e: print(e["event"], flush=True))
except KeyboardInterrupt:
    print("stopped", len(list((__import__("pathlib").Path(sys.argv[2]) / "checkpoints").iterdir())), flush=True)
"""


@pytest.mark.parametrize("program", [IN_MEMORY, BY_PROGRAM])
def test_ctrl_c(program, text_experiment, tmp_path):
    command = [sys.executable, "-c", program, repr(text_experiment), str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert "started" in iter(lambda: process.stdout.readline().strip(), "")
        os.kill(process.pid, signal.SIGINT)
        assert "stopped" in process.stdout.read()
    assert process.returncode == 0

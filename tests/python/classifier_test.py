"""modelet.Classifier: the conventions of scikit-learn, and what its own documentation promises."""
import json
import pickle
import subprocess
import tomllib

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import modelet
from conftest import words
from modelet import _keys, _programs

# Checks of scikit-learn that fail, and why.
EXPECTED_FAILURES = {}


def quick(**parameters):
    return modelet.Classifier(threads=1, random_state=0, **parameters)


@parametrize_with_checks([quick()], expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_scikit_learn_check(estimator, check):
    check(estimator)


def precision_at_1(classifier, X, Y):
    best, _ = classifier.predict_top(X, 1)
    return np.mean([Y[row, label] for row, label in enumerate(best[:, 0])])


def test_learns_many_labels(many_labels):
    X, Y, test_X, test_Y = many_labels
    classifier = modelet.fit(X, Y, random_state=1, threads=1)
    assert precision_at_1(classifier, test_X, test_Y) > 0.95
    predicted = classifier.predict(test_X)
    assert sp.issparse(predicted) and predicted.shape == test_Y.shape
    assert classifier.score(test_X, test_Y) > 0.5  # all labels of a sample right
    dense = modelet.fit(X, Y.toarray(), random_state=1, threads=1)
    assert isinstance(dense.predict(test_X), np.ndarray)
    np.testing.assert_array_equal(dense.predict(test_X), predicted.toarray())


def test_only_zeros_and_ones_are_an_indicator(many_labels):
    X, Y, _, _ = many_labels
    for wrong in (2 * Y.toarray() - 1, Y.toarray() + 1, sp.csr_array(2 * Y)):
        with pytest.raises(ValueError, match="0 and 1 only"):
            quick().fit(X, wrong)


def test_rows_far_from_all_others(many_labels):
    X, Y, _, _ = many_labels
    classifier = quick(normalize="none", loss="sigmoid", epochs=1).fit(X, np.asarray(Y.argmax(axis=1)).ravel())
    far = sp.csr_array(np.full((1, X.shape[1]), -1e6, dtype=np.float32))
    np.testing.assert_allclose(classifier.predict_proba(far).sum(axis=1), 1, rtol=1e-5)
    with pytest.raises(modelet.UsageError, match="row 0: its values are so large"):
        classifier.model_.predict(far * np.float32(3e32), len(classifier.classes_))


def test_columns_that_no_matrix_has(many_labels):
    X, Y, _, _ = many_labels
    model = quick(epochs=1).fit(X, Y).model_
    with pytest.raises(modelet.UsageError, match="the column 4294967296"):
        model.predict(sp.csr_array((np.ones(1, dtype=np.float32), np.array([2**32]), np.array([0, 1])), shape=(1, X.shape[1])))


def test_softmax_names_labels_too(many_labels):
    X, Y, test_X, test_Y = many_labels
    classifier = quick(loss="softmax").fit(X, Y)
    predicted = classifier.predict(test_X)
    assert predicted.multiply(test_Y).sum() > 0.8 * (predicted.sum() + test_Y.sum()) / 2  # the F1 measure
    np.testing.assert_allclose(classifier.predict_proba(test_X).sum(axis=1), 1, rtol=1e-5)


def test_very_many_labels(monkeypatch):
    X, Y = words(300, 5000, seed=3)
    classifier = quick(epochs=3, hidden=[16]).fit(X, Y)
    assert classifier.keys_["sampling.mode"] == "uniform" and classifier.keys_["model.hidden"] == [16]
    whole = classifier.predict(X[:50])
    monkeypatch.setattr("modelet._classifier.SCORES_AT_ONCE", 7 * 5000)  # seven rows at once
    parts = classifier.predict(X[:50])
    assert whole.shape == parts.shape == (50, 5000) and (whole != parts).nnz == 0
    best, scores = classifier.predict_top(X[:50], 3)
    expected = classifier.decision_function(X[:50])
    np.testing.assert_array_equal(np.take_along_axis(expected, best, 1), scores)
    np.testing.assert_array_equal(scores[:, 0], expected.max(axis=1))


def test_arrays_are_not_changed_and_forms_agree(many_labels):
    X, Y, test_X, _ = many_labels
    before = X.copy()
    one = quick(epochs=2).fit(X, Y).decision_function(test_X)
    assert (X != before).nnz == 0
    shuffled = X.tocoo()
    order = np.random.default_rng(0).permutation(shuffled.nnz)
    row, column = shuffled.coords
    unsorted = sp.csr_matrix(sp.coo_matrix((shuffled.data[order], (row[order], column[order])), shape=X.shape))
    wide = sp.csr_array((X.data, X.indices.astype(np.int64), X.indptr.astype(np.int64)), shape=X.shape)
    assert wide.indices.dtype == np.int64
    for other in (unsorted, wide, sp.csc_array(X), X.astype(np.float64), X.toarray()):
        np.testing.assert_array_equal(quick(epochs=2).fit(other, Y).decision_function(test_X), one)


def test_repeatable_with_any_number_of_threads(many_labels):
    X, Y, test_X, _ = many_labels
    scores = [modelet.Classifier(epochs=2, threads=threads, random_state=seed).fit(X, Y).decision_function(test_X)
              for threads, seed in ((1, 3), (2, 3), (1, 4))]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert not np.array_equal(scores[0], scores[2])


def test_partial_fit_goes_on(many_labels):
    X, Y, test_X, test_Y = many_labels
    classifier = quick(epochs=12)
    qualities, steps = [], []
    for part in range(5):
        rows = slice(100 * part, 100 * (part + 1))
        classifier.partial_fit(X[rows], Y[rows])
        qualities.append(precision_at_1(classifier, test_X, test_Y))
        steps.append(classifier.model_.step)
    assert steps == sorted(set(steps))  # counted on
    assert qualities[-1] > 0.9 and qualities[-1] > qualities[0]
    with pytest.raises(ValueError, match="features"):
        classifier.partial_fit(X[:, :50], Y)


@pytest.mark.parametrize("divisions", [1, 2])
def test_towers_are_one_model(divisions, many_labels):
    X, Y, test_X, test_Y = many_labels
    keys = {"model.loss": "sigmoid", "model.towers": 3, "model.divisions": divisions, "model.hidden": [32]}
    classifier = modelet.Classifier(epochs=12, threads=1, random_state=0, settings=keys).fit(X[:400], Y[:400])
    model = classifier.model_
    assert model.towers == 3 * divisions
    np.testing.assert_allclose(model.shares(), 1 / divisions)
    for division in range(divisions):
        labels = np.concatenate([model.tower_labels(3 * division + tower) for tower in range(3)])
        np.testing.assert_array_equal(np.sort(labels), np.arange(model.labels))
    assert model.embed(test_X).shape == (test_X.shape[0], 3 * divisions * 32)
    assert model.label_embeddings().shape == (model.labels, 32)
    best, scores = model.predict(test_X, 1)
    np.testing.assert_allclose(scores[:, 0], model.scores(test_X).max(axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(best[:, 0], model.scores(test_X).argmax(axis=1))
    before = precision_at_1(classifier, test_X, test_Y)
    assert before > 0.7
    classifier.partial_fit(X[400:], Y[400:])
    assert classifier.model_.towers == 3 * divisions
    assert precision_at_1(classifier, test_X, test_Y) > before - 0.1


def test_partial_fit_with_classes():
    X, y = make_blobs(90, centers=3, random_state=0)
    X = StandardScaler().fit_transform(X)
    classifier = quick(epochs=5)
    for label in range(3):  # each call sees one class only
        classifier.partial_fit(X[y == label], y[y == label], classes=[0, 1, 2])
    for _ in range(5):
        classifier.partial_fit(X, y)
    assert classifier.score(X, y) > 0.8
    with pytest.raises(ValueError, match="classes"):
        classifier.partial_fit(X, y + 1)


def test_partial_fit_goes_on_after_fit():
    """Samples with labels that fit() has not seen, after a fit() that chose a direct path and classifiers."""
    X, Y = words(1600, 60, seed=4, per_row=4)
    with_new = np.asarray(Y[:, 40:].sum(axis=1)).ravel() > 0
    (old, test_old), (new, test_new) = (np.split(np.flatnonzero(which), [-150]) for which in (~with_new, with_new))
    classifier = quick().fit(X[old], Y[old])
    assert classifier.keys_["model.centroids"] is True and classifier.keys_["model.classifiers"] > 0
    steps = classifier.model_.step
    before = [precision_at_1(classifier, X[rows], Y[rows]) for rows in (old, test_old, test_new)]
    classifier.partial_fit(X[new], Y[new])
    after = [precision_at_1(classifier, X[rows], Y[rows]) for rows in (old, test_old, test_new)]
    assert classifier.model_.step > steps
    assert before[2] < 0.8 and after[2] > 0.95  # it has learned the new labels
    assert after[0] > before[0] - 0.02 and after[1] > before[1] - 0.02  # and not forgotten the others
    predicted = classifier.predict(X[test_new])[:, 40:]
    assert predicted.multiply(Y[test_new][:, 40:]).sum() > 0.8 * Y[test_new][:, 40:].sum()


def test_partial_fit_makes_a_direct_path_of_all_parts():
    X, Y = words(600, 60, seed=5)
    classifier = quick(settings={"model.centroids": True})
    for part in range(3):
        rows = slice(200 * part, 200 * (part + 1))
        classifier.partial_fit(X[rows], Y[rows])
    assert classifier.keys_["model.centroids"] is True
    of_unit, _ = classifier.model_.pairs()
    together = (X.T @ Y).tocsr()
    assert of_unit.nnz == together.nnz and ((of_unit != 0) != (together != 0)).nnz < 0.01 * together.nnz


def write_samples(path, X, Y):
    """Writes samples as a text file of numbers."""
    lines = [f"{X.shape[0]} {X.shape[1]} {Y.shape[1]}"]
    for row in range(X.shape[0]):
        labels, features = Y[[row]].indices, X[[row]]
        lines.append(",".join(map(str, labels)) + "".join(f" {i}:{v:.9g}" for i, v in zip(features.indices, features.data)))
    path.write_text("\n".join(lines) + "\n")


def dense_with_one_label():
    X, y = make_blobs(90, centers=3, random_state=0)
    return sp.csr_array(X.astype(np.float32)), sp.csr_array(np.eye(3, dtype=np.int8)[y])


@pytest.mark.parametrize("samples", [lambda: words(400, 40, seed=5), lambda: words(300, 1100, seed=6), dense_with_one_label],
                         ids=["words", "many labels", "measurements"])
def test_chooses_what_the_command_line_chooses(samples, tmp_path):
    X, Y = samples()
    write_samples(tmp_path / "train.txt", X, Y)
    command = [_programs.path("modelet"), "train", tmp_path / "train.txt", tmp_path / "train.txt", "--out", tmp_path / "run", "--json",
               "--set", "train.threads=1", "--set", "train.seed=7"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={"MODELET_CACHE": str(tmp_path / "cache")})
    recipe = next(event for event in map(json.loads, done.stdout.splitlines()) if event["event"] == "recipe")
    file = _keys.flat(tomllib.loads((tmp_path / "run/experiment.toml").read_text()))

    heard = []
    classifier = modelet.fit(X, Y, threads=1, settings={"train.seed": 7}, callbacks=heard.append)
    assert heard[0] == classifier.recipe_ and classifier.recipe_["data"] == recipe["data"]
    only_in_memory = {"data.train", "data.test", "train.keep_checkpoints", "train.checkpoint_every"}
    assert {key: value for key, value in classifier.keys_.items() if key not in only_in_memory} == \
        {key: value for key, value in file.items() if key not in only_in_memory}
    # So it learns the same.
    scores = modelet.load(tmp_path / "run", threads=1).scores(X)
    np.testing.assert_array_equal(classifier.model_.scores(X), scores)


def test_trials_and_time():
    X, Y = words(2500, 20, seed=8)
    tried = quick(epochs=30, hidden=[16], batch=8).fit(X, Y)
    assert tried.recipe_["trials"][0]["name"] == "the rules' recipe" and len(tried.recipe_["trials"]) > 1
    hurried = quick(time_budget=1e-9).fit(X[:500], Y[:500])
    assert "too short" in hurried.recipe_["notes"][0]
    usual = quick().fit(X[:500], Y[:500])
    assert usual.recipe_["notes"] == [] and hurried.keys_["train.epochs"] < usual.keys_["train.epochs"]
    with pytest.raises(ValueError, match="time_budget is 0"):
        quick(time_budget=0).fit(X, Y)


def test_pickle_and_clone(many_labels):
    X, Y, test_X, _ = many_labels
    classifier = quick(epochs=2, hidden=[32]).fit(X, Y)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.decision_function(test_X), classifier.decision_function(test_X))
    in_parts = quick(hidden=[32]).partial_fit(X, Y)
    again = pickle.loads(pickle.dumps(in_parts)).partial_fit(X, Y)  # with the optimiser's state
    assert again.model_.step > in_parts.model_.step
    copy = clone(classifier)
    assert copy.get_params() == classifier.get_params() and not hasattr(copy, "model_")


def test_in_a_pipeline_and_a_search():
    X, y = make_blobs(60, centers=3, cluster_std=0.5, random_state=0)
    y = np.array(["red", "green", "blue"])[y]
    search = GridSearchCV(make_pipeline(StandardScaler(), quick()), {"classifier__hidden": [[16], [32]]}, cv=2)
    assert search.fit(X, y).score(X, y) > 0.9


def test_events_and_their_end(many_labels):
    X, Y, _, _ = many_labels
    events = []
    classifier = quick(epochs=3, callbacks=events.append).fit(X, Y)
    kinds = [event["event"] for event in events]
    assert kinds[:2] == ["recipe", "started"] and kinds[-1] == "finished" and kinds.count("epoch") == 3
    assert "p_at_1" not in classifier.training_  # nothing was tested

    class Enough(Exception):
        pass

    def stop(event):
        if event["event"] == "epoch":
            raise Enough

    with pytest.raises(Enough):
        quick(epochs=1000, callbacks=stop).fit(X, Y)

    # A model that was there before stays as it was.
    y = np.array(["red", "green", "blue"])[np.arange(X.shape[0]) % 3]
    classifier = quick().fit(X, y)
    before = classifier.predict(X)
    for again, problem in (({"callbacks": stop}, Enough), ({"settings": {"train.epoch": 3}}, modelet.UsageError)):
        classifier.set_params(**again)
        with pytest.raises(problem):
            classifier.fit(X[:, :16], np.arange(X.shape[0]) % 2)
        np.testing.assert_array_equal(classifier.predict(X), before)


def test_validation_chooses_the_best_epoch(many_labels):
    X, Y, _, _ = many_labels
    events = []
    classifier = quick(epochs=4, validation=0.2, callbacks=events.append).fit(X, Y)
    held_out = {event["step"]: event["validation"]["p_at_1"] for event in events if event["event"] == "epoch"}
    assert len(held_out) == 4
    best = classifier.training_["best_step"]
    assert held_out[best] == max(held_out.values()) and classifier.model_.step == best


def test_settings_reach_the_engine(many_labels):
    X, Y, _, _ = many_labels
    with pytest.raises(modelet.UsageError, match="epochs"):
        quick(settings={"train.epoch": 3}).fit(X, Y)
    classifier = quick(settings={"train": {"epochs": 2}, "model.hidden": [48]}).fit(X, Y)
    assert "hidden = [48]" in classifier.model_.experiment
    classifier = quick(settings={"train.epochs": 2, "train.threads": 2, "train.patience": 2}, validation=0.2)
    for _ in range(2):
        classifier.partial_fit(X, Y)  # without held-out samples, so patience has nothing to judge by
        assert "epochs = 2" in classifier.model_.experiment and "threads = 2" in classifier.model_.experiment
    with pytest.raises(ValueError, match="columns of classes"):
        quick().fit(X, np.full((X.shape[0], 2), 3) + np.arange(X.shape[0])[:, None] % 3)


def test_names_of_labels_are_looked_for_before_training(many_labels, tmp_path):
    X, Y, _, _ = many_labels
    names = tmp_path / "names.txt"
    names.write_text("one\ntwo\n")
    for wrong in (names, tmp_path / "missing.txt"):
        events = []
        with pytest.raises(modelet.Error, match=wrong.name):
            quick(callbacks=events.append, settings={"data.labels": str(wrong)}).fit(X, Y)
        assert not events

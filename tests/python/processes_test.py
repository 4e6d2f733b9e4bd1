"""Models and their folders in forked children, in pools of workers and in processes that are killed. What a process makes belongs to
it, and goes with it."""
import concurrent.futures
import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.base import clone

import modelet

X, Y = np.eye(40, dtype=np.float32), np.arange(40) % 4


def fitted(threads=2):
    return modelet.Classifier(random_state=0, epochs=2, threads=threads, progress=False).fit(X, Y)


def fit_and_keep(seed):
    global kept  # until the process ends
    kept = fitted()
    return pickle.dumps(kept), os.getpid()


def is_whole(classifier):
    """It can do all that needs its files."""
    same = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(same.predict(X), classifier.predict(X))
    with tempfile.TemporaryDirectory() as folder:
        classifier.model_.save(Path(folder) / "model")
        assert modelet.load(Path(folder) / "model", threads=1).predict(X, 1)[0].shape == (40, 1)
    copy.deepcopy(classifier).partial_fit(X, Y)
    return True


def in_fork(use, *arguments):
    """Runs use(*arguments) in a forked child, which ends as a script does. True if it returned true."""
    child = os.fork()
    if child == 0:
        sys.exit(0 if use(*arguments) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def in_script(text, folder):
    """Runs a script with a folder for temporary files of its own; returns what it leaves there."""
    folder.mkdir()
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from processes_test import *\n{text}"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, env={**os.environ, "TMPDIR": str(folder)})
    return [path.name for path in folder.iterdir()]


def refit(classifier):
    classifier.fit(X, Y)
    return is_whole(classifier)


def drop(classifier):
    del classifier.model_
    return True


def test_a_forked_child_takes_nothing_from_its_parent(tmp_path):
    text = """
classifier = fitted()
for use in (lambda c: True, is_whole, refit, drop):
    assert in_fork(use, classifier), use
    assert is_whole(classifier), use
fork = multiprocessing.get_context("fork")
for use in (refit, drop, is_whole):
    process = fork.Process(target=use, args=(classifier,))
    process.start()
    process.join()
    assert process.exitcode == 0 and is_whole(classifier), use
assert is_whole(classifier.partial_fit(X, Y))
"""
    assert in_script(text, tmp_path / "temporary") == []


@pytest.mark.parametrize("pool", [
    "with multiprocessing.get_context('fork').Pool(2) as pool: done = pool.map(fit_and_keep, range(2))",
    "with multiprocessing.get_context('spawn').Pool(2) as pool: done = pool.map(fit_and_keep, range(2))",
    "with concurrent.futures.ProcessPoolExecutor(2) as pool: done = list(pool.map(fit_and_keep, range(2)))",
    "done = joblib.Parallel(n_jobs=2)(joblib.delayed(fit_and_keep)(seed) for seed in range(2))"],
    ids=["fork", "spawn", "executor", "joblib"])
def test_pools_of_workers_leave_nothing(pool, tmp_path):
    text = f"""
if __name__ == "__main__":
    {pool}
    for pickled, process in done:
        assert process != os.getpid() and is_whole(pickle.loads(pickled))
"""
    assert [name for name in in_script(text, tmp_path / "temporary") if name.startswith("modelet")] == []


def test_what_a_killed_process_leaves_goes_with_the_next(tmp_path):
    folder = tmp_path / "temporary"
    with pytest.raises(subprocess.CalledProcessError):
        in_script("fit_and_keep(0); os.kill(os.getpid(), 9)", folder)
    assert len(list(folder.glob("modelet-*"))) == 1
    subprocess.run([sys.executable, "-c", "from modelet import Classifier"], check=True, env={**os.environ, "TMPDIR": str(folder)})
    assert list(folder.iterdir()) == []


def test_a_child_says_that_the_files_have_gone_with_its_parent():
    classifier = fitted()
    begin, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(begin[1], b".")
        os.read(end[0], 1)
        classifier.predict(X)
        try:
            pickle.dumps(classifier)
        except modelet.Error as error:
            os._exit(0 if "the files of this model are gone" in str(error) else 2)
        os._exit(1)
    os.read(begin[0], 1)
    classifier.fit(X, Y)
    os.write(end[1], b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_whole(classifier)


def test_copies_have_files_of_their_own():
    classifier = fitted()
    copied, unpickled, fresh = copy.deepcopy(classifier), pickle.loads(pickle.dumps(classifier)), clone(classifier)
    folders = {model.model_.folder for model in (classifier, copied, unpickled)}
    assert len(folders) == 3 and all(folder.is_dir() for folder in folders)
    folder = classifier.model_.folder
    del classifier
    assert not folder.exists() and is_whole(copied) and is_whole(unpickled) and is_whole(fresh.fit(X, Y))

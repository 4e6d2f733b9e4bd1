"""A program of a user, and the package itself, pass mypy --strict with the package's own types."""
import importlib.metadata
import subprocess
import sys
from pathlib import Path

PROGRAM = '''
from typing import assert_type

import numpy as np

import modelet
from modelet import Classifier, Error, Model, Run


def on_event(event: dict[str, object]) -> None:
    print(event["event"])


X = np.eye(4, dtype=np.float32)
classifier = modelet.fit(X, np.array([0, 1, 0, 1]), epochs=2, callbacks=on_event)
assert_type(classifier, Classifier)
assert_type(Classifier(hidden=[32], settings={"train.patience": 2}).fit(X, [0, 1, 0, 1]).partial_fit(X, [0, 1, 0, 1]), Classifier)
labels, scores = classifier.predict_top(X, k=2)

try:
    run = modelet.train({"data.train": "train.txt", "data": {"test": "test.txt"}}, nodes=2, out="run", progress="auto")
except Error as error:
    raise SystemExit(str(error))
assert_type(run, Run)
model = run.load(threads=2)
assert_type(model, Model)
best, _ = model.predict(["some words"], k=3)
model.predict([{"title": "some words"}])
assert_type(model.neighbours("word", 3), list[tuple[str, float]])
assert_type(model.neighbours(int(best[0, 0])), list[tuple[int, float]])
model.to_onnx("model.onnx", k=3)
'''
WRONG = '''
import modelet

modelet.load(7)
modelet.Classifier(hiden=[32])
modelet.load("run").neighbours(0.5)
'''


def mypy(*arguments, folder):
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "cache", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_a_program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = mypy("program.py", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mistakes_are_found(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    found = mypy("wrong.py", folder=tmp_path).stdout
    for line, kind in ((4, "arg-type"), (5, "call-arg"), (6, "call-overload")):
        assert any(f"wrong.py:{line}: error" in text and f"[{kind}]" in text for text in found.splitlines()), found


def test_the_package_itself(tmp_path):
    """All but modelet.ray: mypy cannot follow what Ray makes of a class."""
    package = Path(importlib.metadata.distribution("modelet").locate_file("modelet"))
    modules = [argument for file in sorted(package.glob("*.py")) if file.name not in ("__init__.py", "ray.py")
               for argument in ("--module", f"modelet.{file.stem}")]
    assert modules
    done = mypy("--ignore-missing-imports", "--allow-subclassing-any", *modules, folder=tmp_path)  # scikit-learn has no types
    assert done.returncode == 0, done.stdout + done.stderr

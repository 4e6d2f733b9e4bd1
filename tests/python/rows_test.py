"""A model of columns gives one answer, whatever door its rows come through: a file, a pipe, dicts, lists, frames, HTTP."""
import contextlib
import decimal
import fractions
import http.client
import json
import math
import os
import subprocess
import time

import numpy as np
import pandas as pd
import polars as pl
import pytest

import modelet
from modelet import _programs

TABLE = {"table.columns": ["label:y", "cat:c", "num:n", "bin:b", "cat:d", "cross:c*d"], "table.min_count": 1, "data.format": "table"}
CSV = {"csv": {"labels": "y", "text": ["c", "d"]}, "data.format": "csv"}
# c: numbers and a missing value, n and b: numbers, d: texts of every kind
ROWS = [{"c": 1, "n": 2.5, "b": 3, "d": "a, b"}, {"c": 2, "n": None, "b": 1, "d": "say \"x\""}, {"c": None, "n": 0.1, "b": None, "d": "d"},
        {"c": 10**16, "n": 7, "b": 2, "d": "c"}, {"c": 0.5, "n": -1, "b": 5, "d": None}, {"c": 3, "n": 1, "b": 1, "d": "NA"}]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


def quoted(value):
    return "" if value is None else '"' + str(value).replace('"', '""') + '"'


def trained(folder, keys, header=True, rows=ROWS, columns=("y", "c", "n", "b", "d")):
    """A model of a file with these rows, many times; and the file."""
    lines = [",".join(columns)] if header else []
    for number in range(60):
        row = {**rows[number % len(rows)], "y": number % len(rows) % 2}
        lines.append(",".join(quoted(row[name]) for name in columns))
    data = folder / "train.csv"
    data.write_text("\n".join(lines) + "\n")
    run = modelet.train({"data.train": str(data), "data.test": str(data), "csv.header": header, "table.hash_features": 4096,
                         "sampling.mode": "full", "model.hidden": [16], "modelets.hidden_columns": 16,
                         "train": {"epochs": 3, "learning_rate": 0.01, "batch": 16, "threads": 1}, **keys}, out=folder / "run", progress=False)
    return run.load(), data


def same(X, Y):
    return X.shape == Y.shape and (X != Y).nnz == 0


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("table"), TABLE)


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("csv"), CSV)


@pytest.fixture(params=["table", "csv", "table without header"])
def model(request, tmp_path_factory):
    """A model, and how it reads ROWS from its file."""
    if request.param == "table without header":
        columns = ["label:y", "cat:c", "num:n", "bin:b", "cat:d"]
        loaded, data = trained(tmp_path_factory.mktemp("plain"), {**TABLE, "table.columns": columns}, header=False)
    else:
        loaded, data = request.getfixturevalue(request.param)
    return loaded, loaded.read(data)[0][:len(ROWS)]


def test_one_answer_in_python(model):
    model, expected = model
    in_order = [[row[name] for name in model.columns] for row in ROWS]
    whole = pd.DataFrame(COLUMNS, columns=["n", "d", "c", "b"])  # numbers become floats where a value is missing
    for rows in (ROWS, [{name: row[name] for name in model.columns if row[name] is not None} for row in ROWS], COLUMNS, in_order,
                 tuple(map(tuple, in_order)), np.array(in_order, object), whole, whole.to_dict("records"), pd.DataFrame(COLUMNS, dtype=object),
                 whole.convert_dtypes(), whole.assign(y=1, more=2), pl.DataFrame(COLUMNS, strict=False),
                 [{**row, "y": 1, "more": 2} for row in ROWS]):
        assert same(model.encode(rows), expected), rows
        np.testing.assert_array_equal(model.scores(rows), model.scores(expected))
    assert model.encode(whole[:0]).shape == model.encode([]).shape == (0, model.features)


@pytest.mark.parametrize("missing", [None, math.nan, np.nan, np.float32("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), decimal.Decimal("NaN"),
                                     decimal.Decimal("sNaN"), np.ma.masked, "", b""])
def test_what_is_missing(table, missing):
    model, _ = table
    expected = model.encode([{}])
    assert same(model.encode([{"c": missing, "n": missing, "b": missing, "d": missing}]), expected)
    assert same(model.encode([[missing] * 4]), expected)
    assert same(model.encode({name: [missing] for name in model.columns}), expected)


def test_words_stay_words(table):
    model, data = table
    for row, other in (({"d": "NA"}, {}), ({"c": "1.5"}, {"c": "1"}), ({"d": "d"}, {"d": "c"})):
        assert not same(model.encode([row]), model.encode([other]))
    assert same(model.encode([{"c": "NA", "n": "NA"}]), model.encode([{"c": "NA"}]))


@pytest.mark.parametrize("one", [1, 1.0, "1", "1.0", "1.00", np.int8(1), np.float16(1), np.float32(1), np.float64(1), np.longdouble(1), np.uint64(1),
                                 decimal.Decimal("1.0"), fractions.Fraction(2, 2), b"1"])
def test_a_whole_number_has_one_name(table, csv, one):
    for model, _ in (table, csv):
        assert same(model.encode([{"c": one, "d": "c"}]), model.encode([{"c": 1, "d": "c"}]))
        assert not same(model.encode([{"c": one, "d": "c"}]), model.encode([{"c": 2, "d": "c"}]))


def test_other_numbers_and_truth(tmp_path):
    values = ["0.1", "1e-05", "12345.678", "10000000000000000000000", "True", "False"]
    rows = [{"c": value, "n": 1, "b": 1, "d": "d"} for value in values]
    model, data = trained(tmp_path, TABLE, rows=rows)
    expected = model.read(data)[0][:len(rows)]
    for given in ([0.1, 1e-5, 12345.678, 1e22, True, False], ["0.1", "1e-05", "12345.678", "1e+22", "true", "FALSE"],
                  [np.float64(0.1), decimal.Decimal("0.00001"), np.float32(12345.678), 10**22, np.True_, np.bool_(False)],
                  [np.float32(0.1), np.float32(1e-5), fractions.Fraction("12345.678"), decimal.Decimal("1E+22"), "True", "False"]):
        assert same(model.encode([{"c": value, "n": 1, "b": 1, "d": "d"} for value in given]), expected), given
    narrow = pd.DataFrame({"c": np.array([0.1, 1e-5, 12345.678], np.float32), "n": True, "b": 1, "d": "d"})
    for frame in (narrow, narrow.astype({"c": "category"}),
                  pl.DataFrame({name: narrow[name].to_numpy() if name == "c" else narrow[name].tolist() for name in narrow})):
        assert same(model.encode(frame), expected[:3])
    half = pd.DataFrame({"c": np.array([0.1], np.float16), "n": 1, "b": 1, "d": "d"})
    assert same(model.encode(half), expected[:1])


def test_files_that_pandas_writes(table, tmp_path):
    model, data = table
    frame = pd.read_csv(data, keep_default_na=False, na_values=[""])
    assert frame["n"].dtype == frame["c"].dtype == np.float64  # 1 became 1.0
    frame.to_csv(tmp_path / "written.csv", index=False)
    assert ",1.0," in (tmp_path / "written.csv").read_text()
    expected = model.read(data)[0]
    assert same(model.read(tmp_path / "written.csv")[0], expected)
    assert same(model.encode(frame), expected)
    again, _ = trained(tmp_path, {**TABLE, "data.train": str(tmp_path / "written.csv")})
    assert same(again.read(data)[0], expected)


def test_a_text_stays_a_text(csv):
    model, _ = csv
    for text in ("c", "y,c,d", "\"", "say \"x\", d\n\tNA", "a, b\r\nd", ""):
        one = model.encode([{"c": text}])
        assert one.shape[0] == 1 and same(model.encode([text]), one) and same(model.encode([[text, ""]]), one) and same(model.encode([text, text])[1:], one)
    names = model.encode([["c", "d"], ["c", "d"]])  # a row like the header is a row
    assert names.shape[0] == 2 and same(names[:1], names[1:]) and names.nnz > 0
    assert same(model.encode(pd.Series(["d", None])), model.encode(["d", ""]))
    if hasattr(np.dtypes, "StringDType"):
        assert same(model.encode(np.array(["d", "c"], np.dtypes.StringDType())), model.encode(["d", "c"]))


def test_what_is_refused(table, csv, tmp_path):
    model, _ = table
    for rows, error in (([{"c": 1}, {"cc": 1}], r"rows\[1\]: this model has no column 'cc'; it has c, n, b, d"),
                        ({"c": [1], "m": [2]}, "no column 'm'"), ([[1, 2, 3]], r"3 values for the 4 columns of this model, c, n, b, d"),
                        (["c"], "reads columns, not a text"), ({"c": [1], "d": [1, 2]}, "differ in length: 'c' has 1, 'd' has 2"),
                        (pd.DataFrame([[1, 2]], columns=["c", "c"]), "two columns of one name")):
        with pytest.raises(modelet.UsageError, match=error):
            model.encode(rows)
    for rows, error in (([{"c": [1, 2]}], r"rows\[0\]: \[1, 2\] is not one value"), ({"c": 1}, "column 'c' has the one value 1"),
                        ([{"c": 1}, "c"], "not several of them in one"), ("c", "not one text"), ([{3: 1}], "3 is no name of a column"),
                        (pd.DataFrame([[1, 2]]), "0 is no name of a column")):
        with pytest.raises(TypeError, match=error):
            model.predict(rows)
    with pytest.raises(TypeError, match=r"an array of numbers is a matrix of features; give array.tolist\(\) for rows of the columns c, n, b, d"):
        model.encode(np.ones((2, 4)))
    with pytest.raises(modelet.Error, match=r"rows\[1\]: column 'n': expected a number, or nothing if it is missing, found 'x'"):
        model.encode([{"n": 1}, {"n": "x"}])


@contextlib.contextmanager
def served(run, folder):
    """Starts a server; yields a function from a question to the status and answer."""
    endpoint = folder / "endpoint"
    command = [_programs.path("modelet"), "serve", str(run), "--listen", "127.0.0.1:0", "--endpoint-file", str(endpoint), "--no-probabilities"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            while not endpoint.exists():
                assert server.poll() is None
                time.sleep(0.02)
            connection = http.client.HTTPConnection("127.0.0.1", int(endpoint.read_text().rsplit(":", 1)[1]))

            def ask(body):
                connection.request("POST", "/v1/predict", body if isinstance(body, str) else json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())

            yield ask
        finally:
            server.terminate()


@pytest.mark.parametrize("kind", ["table", "csv"])
def test_one_answer_over_http_and_in_a_pipe(kind, request, tmp_path):
    model, data = request.getfixturevalue(kind)
    run = model.folder.parent.parent
    k = model.labels
    labels, scores = model.predict(ROWS, k)
    lines = [",".join(row) for row in [model.columns, *([quoted(row[name]) for name in model.columns] for row in ROWS)]]
    piped = subprocess.run([_programs.path("modelet"), "predict", str(run), "-", "--json", "--k", str(k)], input="\n".join(lines), capture_output=True,
                           text=True, check=True, env={**os.environ, "MODELET_CACHE": str(tmp_path)}).stdout.splitlines()
    answers = [[json.loads(line)["labels"] for line in piped]]
    with served(run, tmp_path) as ask:
        for fields in (lambda row: row, lambda row: [row[name] for name in model.columns], lambda row: {**row, "y": "?", "more": True},
                       lambda row: {name: float(value) if isinstance(value, int) else value for name, value in row.items()}):
            status, answer = ask({"samples": [{"fields": fields(row)} for row in ROWS], "k": k})
            assert status == 200, answer
            answers.append([prediction["labels"] for prediction in answer["predictions"]])
        assert ask('{"fields": {"c": NaN}}')[0] == 400
        if kind == "csv":
            _, answer = ask({"text": "say \"x\", d", "k": k})
            assert [label["label"] for label in answer["labels"]] == model.predict(["say \"x\", d"], k)[0][0].tolist()
    for answer in answers:
        assert [[label["label"] for label in row] for row in answer] == labels.tolist()
        np.testing.assert_allclose([[label["score"] for label in row] for row in answer], scores, atol=1e-3)

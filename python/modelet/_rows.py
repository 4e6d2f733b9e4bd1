"""What a model is asked, as the engine reads it: texts, or rows with a field for each of the model's columns."""
import decimal
import fractions
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from modelet import _modelet


# Types of floats by their names in numpy, pandas, polars and pyarrow.
_NARROW: dict[str, Any] = {"float32": np.float32, "float": np.float32, "float16": np.float16, "halffloat": np.float16}


def listed(rows: Any) -> Any:
    """Series and arrays of texts or objects as lists; everything else as it is."""
    if isinstance(rows, np.ndarray) and rows.dtype.kind in "OUST":  # T: numpy.dtypes.StringDType
        return rows.tolist()
    if not _is_frame(rows):
        for as_list in ("to_list", "to_pylist"):  # of pandas and polars, and of pyarrow
            if hasattr(rows, as_list):
                return getattr(rows, as_list)()
    return rows


def are_questions(native: _modelet.Model, rows: Any) -> bool:
    """Whether listed() rows have to be encoded; if not, they are a matrix of features."""
    if isinstance(rows, (str, bytes, Mapping)):
        return True
    if isinstance(rows, (list, tuple)) and rows:
        return _is_text(rows[0]) or isinstance(rows[0], Mapping) or bool(native.columns and isinstance(rows[0], (list, tuple)))
    return _is_frame(rows) and bool(native.columns)


def encode(native: _modelet.Model, rows: Any) -> tuple[npt.NDArray[Any], ...]:
    """The samples of listed() rows."""
    if isinstance(rows, (str, bytes)):
        raise TypeError("give a list of texts, not one text")
    if isinstance(rows, Mapping):
        return native.encode_rows(_by_column(native, list(rows), list(rows.values())))
    if _is_frame(rows):
        names = list(getattr(rows, "column_names", rows.columns))  # of pyarrow, and of pandas and polars
        if len(set(names)) < len(names):
            raise _modelet.UsageError(f"the rows have two columns of one name: {', '.join(map(repr, names))}")
        return native.encode_rows(_by_column(native, names, [rows[name] for name in names]))
    if isinstance(rows, np.ndarray) and native.columns:
        raise TypeError("an array of numbers is a matrix of features; give array.tolist() for rows of the columns "
                        + ", ".join(native.columns))
    rows = list(rows)
    if all(map(_is_text, rows)):
        return native.encode_texts([field(text) for text in rows])
    if all(isinstance(row, Mapping) for row in rows):
        return native.encode_rows(_by_name(native, rows))
    if all(isinstance(row, (list, tuple)) for row in rows):
        return native.encode_rows([_fields(row, number) for number, row in enumerate(rows)])
    raise TypeError("give a list of texts, a list of dicts or a list of lists, not several of them in one")


def _is_frame(rows: Any) -> bool:
    return hasattr(rows, "columns") and hasattr(rows, "__getitem__")


def _is_text(row: Any) -> bool:
    return isinstance(row, (str, bytes)) or (not isinstance(row, Iterable) and is_missing(row))


def is_missing(value: Any) -> bool:
    if value is None or value is np.ma.masked or type(value).__name__ == "NAType":  # that of pandas, which equals nothing
        return True
    if isinstance(value, decimal.Decimal):  # a signalling NaN does not compare
        return value.is_nan()
    return bool(value != value)  # NaN and NaT of any kind


def field(value: Any) -> bytes:
    """A value as text (docs/data_format.md, "Values"): nothing if it is missing. The engine names numbers."""
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, (Mapping, Sequence, Set, np.ndarray)) and value is not np.ma.masked:
        raise TypeError(f"{value!r} is not one value; give a text, a number, True, False or None")
    if is_missing(value):
        return b""
    if isinstance(value, (decimal.Decimal, fractions.Fraction, np.longdouble)):
        number = float(value)
        value = int(value) if number.is_integer() and value == int(value) else number
    return str(value).encode(errors="surrogateescape")


def cell(value: Any) -> Any:
    """A value as JSON: a text, null, or a list of them; or a history, a list of {column: value}."""
    listed = parts(value)
    if listed is None:
        return field(value).decode(errors="surrogateescape") or None
    if listed and all(isinstance(part, Mapping) for part in listed):
        return [{name: cell(each) for name, each in part.items()} for part in listed]
    return [cell(part) if parts(part) is None else _refuse(value) for part in listed]


def _refuse(value: Any) -> Any:
    raise TypeError(f"{value!r} is a list of lists; give its parts columns of their own")


def parts(value: Any) -> list[Any] | None:
    """The values of a list of any kind; None: it is one value."""
    if isinstance(value, (str, bytes, Mapping)) or value is np.ma.masked:
        return None
    if isinstance(value, np.ndarray) or hasattr(value, "to_list"):  # of pandas; of polars
        return None if getattr(value, "ndim", 1) == 0 else list(value)
    return list(value) if isinstance(value, (Sequence, Set)) else None


def _history(native: _modelet.Model, value: Any) -> list[bytes]:
    """The history that a row brings, as the engine's last field."""
    if not native.takes_histories or value is None:
        return []
    return [json.dumps(cell(value), ensure_ascii=False).encode(errors="surrogateescape")]


def _fields(values: Iterable[Any], number: int) -> list[bytes]:
    try:
        return [field(value) for value in values]
    except TypeError as error:
        raise TypeError(f"rows[{number}]: {error}") from None


def _places(native: _modelet.Model, names: Sequence[Any], where: str) -> Sequence[int | None]:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{where}: {name!r} is no name of a column; this model has {', '.join(map(repr, native.columns))}")
    return native.places([field(name) for name in names], where)


def _by_name(native: _modelet.Model, rows: Sequence[Mapping[str, Any]]) -> list[list[bytes]]:
    known: dict[tuple[Any, ...], Sequence[int | None]] = {}
    fields = []
    for number, row in enumerate(rows):
        names = tuple(row)
        if names not in known:
            known[names] = _places(native, names, f"rows[{number}]")
        values = [row[name] for name in names]
        fields.append(_fields((None if place is None else values[place] for place in known[names]), number)
                      + _history(native, row.get(_modelet.HISTORY)))
    return fields


def _by_column(native: _modelet.Model, names: Sequence[Any], columns: Sequence[Any]) -> list[list[bytes]]:
    places = _places(native, names, "the rows")
    lengths = {}
    for name, column in zip(names, columns):
        if isinstance(column, (str, bytes)) or not hasattr(column, "__len__"):
            raise TypeError(f"column {name!r} has the one value {column!r}; give a list of values for each column, or a list of dicts")
        lengths[name] = len(column)
    if len(set(lengths.values())) > 1:
        raise _modelet.UsageError(f"columns differ in length: {', '.join(f'{name!r} has {n}' for name, n in lengths.items())}")
    count = next(iter(lengths.values()), 0)
    values = [[None] * count if place is None else column_values(columns[place]) for place in places]
    brought = columns[names.index(_modelet.HISTORY)] if _modelet.HISTORY in names else [None] * count
    return [_fields(row, number) + _history(native, history) for number, (*row, history) in enumerate(zip(*values, column_values(brought)))]


def column_values(column: Any) -> list[Any]:
    values = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
    kind = getattr(column, "dtype", getattr(column, "type", ""))
    kind = getattr(getattr(kind, "categories", None), "dtype", kind)  # of the values of a column of categories
    kind = str(kind).lower().removesuffix("[pyarrow]")
    if narrow := _NARROW.get(kind):
        # The values may have been widened: 0.1 is then 0.10000000149011612.
        return [None if is_missing(value) else narrow(value) for value in values]
    return values

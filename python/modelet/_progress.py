"""A progress bar for the events of a run (docs/events.md), in a terminal or a notebook."""
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

Event: TypeAlias = dict[str, Any]  # of docs/events.md
Callbacks: TypeAlias = Callable[[Event], object] | Sequence[Callable[[Event], object]] | None
Progress: TypeAlias = bool | Literal["auto"]


def _in_notebook() -> bool:
    kernel = sys.modules.get("ipykernel")
    return kernel is not None and "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None


class Bar:
    """Shows the steps of a run with tqdm. In a notebook it is a widget, if ipywidgets is installed."""

    def __init__(self) -> None:
        if _in_notebook() and importlib.util.find_spec("ipywidgets"):
            from tqdm.notebook import tqdm
        else:
            from tqdm import tqdm

        self._tqdm = tqdm
        self._bar: Any = None

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind == "started":
            self._bar = self._tqdm(total=event["steps"], initial=event["step"], unit="step", leave=True)
        if self._bar is None:
            return
        step = event["steps"] if kind == "finished" else event.get("step", 0)
        self._bar.update(max(0, step - self._bar.n))
        if kind in ("progress", "epoch") and event.get("loss") is not None:
            shown = {"loss": f"{event['loss']:.4f}"}
            figures = event.get("validation") or event
            if figures.get("p_at_1") is not None:
                shown["P@1"] = f"{figures['p_at_1']:.4f}"
            self._bar.set_postfix(shown)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def bar(wanted: Progress) -> Bar | None:
    """Returns a Bar or None. `wanted` is True, False, or "auto": a bar in a terminal or notebook, if tqdm is installed."""
    if wanted == "auto":
        try:
            return Bar() if sys.stderr.isatty() or _in_notebook() else None
        except ImportError:
            return None
    return Bar() if wanted else None


class Listeners:
    """Passes events to a bar and to callbacks, and keeps the last event of each kind."""

    def __init__(self, callbacks: Callbacks, progress: Progress) -> None:
        self._callbacks = [callbacks] if callable(callbacks) else list(callbacks or ())
        self._bar = bar(progress)
        self.last: dict[str, Event] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, event: Event) -> None:
        self.last[event["event"]] = event
        if self._bar is not None:
            self._bar(event)
        for callback in self._callbacks:
            callback(event)

"""The list of all callbacks of a training: calls and times their hooks, and keeps what they add to the logs."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from stages.callbacks.timing import Timing
from stages.errors import UserError
from stages.results import as_number


class Callbacks(keras.callbacks.CallbackList):
    """Calls each hook of all callbacks in order, with one mapping of logs, and keeps the values that they change.

    Keras' own list passes every hook a copy, so that values which a callback adds reach only the callbacks after it.
    Here values that are added or replaced during an epoch are passed to the hooks at its end, and become part of
    `logs`. Of several values of one name in an epoch the last counts.

    added: such values of the current epoch, by the names of the logs; those added in a validation get the prefix
        `val_`. outside: those added at the beginning or the end of training.
    logs: those of the last completed epoch, numbers alone.
    between: seconds between the last two hooks, up to the start of the current one.
    names: of the user's own callbacks, by their `id`, as errors in them say.

    Args:
        timing: counts the time of the hooks. options: of `keras.callbacks.CallbackList`.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        warn: Callable[[str], None],
        timing: Timing | None = None,
        names: Mapping[int, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(list(callbacks), **options)
        self.names = names or {}
        self.timing = timing or Timing()
        self.between = 0.0
        self._hook_ended = time.perf_counter()
        self.added: dict[str, float] = {}
        self.outside: dict[str, float] = {}
        self.logs: dict[str, float] = {}
        self._warn = warn
        self._warned: set[str] = set()

    def on_train_begin(self, logs: Any = None) -> None:
        changed = self._call("on_train_begin", logs)
        self.outside |= changed  # a callback may have restored those of an earlier process

    def on_train_end(self, logs: Any = None) -> None:
        self.outside |= self._call("on_train_end", logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.added = {}
        self.added = self._call("on_epoch_begin", logs, epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        plain = _plain(logs) | self.added
        changed = self._call("on_epoch_end", plain, epoch)
        self.logs = self.numbers(plain) | changed

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.added |= self._call("on_train_batch_begin", logs, batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.added |= self._call("on_train_batch_end", logs, batch)

    def on_test_begin(self, logs: Any = None) -> None:
        self._add_of_validation(self._call("on_test_begin", logs))

    def on_test_end(self, logs: Any = None) -> None:
        self._add_of_validation(self._call("on_test_end", logs))

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._add_of_validation(self._call("on_test_batch_begin", logs, batch))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._add_of_validation(self._call("on_test_batch_end", logs, batch))

    def warn_once(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            self._warn(line)

    def _add_of_validation(self, values: Mapping[str, float]) -> None:
        self.added |= {name if name.startswith(("val_", "val/")) else f"val_{name}": v for name, v in values.items()}

    def _call(self, hook: str, logs: Any, *place: int) -> dict[str, float]:
        """Calls `hook` of every callback; returns the numbers that they have added to `logs` or replaced in it."""
        before = _plain(logs)  # waits for the step that computes them
        passed = dict(before)
        self.between = time.perf_counter() - self._hook_ended
        with self.timing.of("callbacks"):
            for callback in self.callbacks:
                self._call_one(callback, hook, place, passed)
                for name, value in passed.items():
                    if hasattr(value, "dtype"):  # a CSVLogger, for one, cannot write a tensor
                        number = as_number(value)
                        passed[name] = value if number is None else number
        self._hook_ended = time.perf_counter()
        return self.numbers(
            {name: value for name, value in passed.items() if name not in before or value is not before[name]}
        )

    def _call_one(
        self, callback: keras.callbacks.Callback, hook: str, place: Sequence[int], logs: dict[str, Any]
    ) -> None:
        """Calls a hook; what is wrong in a callback of the user's is said by its name."""
        try:
            getattr(callback, hook)(*place, logs=logs)
        except UserError:
            raise
        except Exception as error:
            if id(callback) not in self.names:
                raise
            raise UserError(
                f"{self.names[id(callback)]}.{hook}: {type(error).__name__}: {error}", "a callback that raises no error"
            ) from error

    def numbers(self, values: Mapping[Any, Any]) -> dict[str, float]:
        """Returns the numbers in `values`, and warns once of each other value."""
        numbers = {}
        for name, value in values.items():
            number = as_number(value)
            if number is None:
                kind = type(value).__name__
                self.warn_once(f"a callback adds {name} to the logs, a {kind} and not a number: it is not recorded")
            else:
                numbers[str(name)] = number
        return numbers


def _plain(logs: Mapping[Any, Any] | None) -> dict[Any, Any]:
    """Returns logs with tensors as floats."""
    converted = {name: (value, as_number(value)) for name, value in (logs or {}).items()}
    return {name: value if number is None else number for name, (value, number) in converted.items()}

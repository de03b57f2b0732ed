"""Shared views of an experiment in MLflow: the columns, the order and the charts that its page of runs opens with.

MLflow 3.17 keeps each view in a tag of the experiment, `mlflow.sharedViewState.<key>`, and opens it for an address that
ends in `viewStateShareKey=<key>`. The format is defined by MLflow's frontend and is not documented. In
`mlflow/server/js/build/static/js`, look for `sharedViewState`, `selectedColumns` and `compareRunCharts`.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

TAG = "mlflow.sharedViewState."

RUNS = "runs"
"""The key of the view of all runs of an experiment."""

COMBINATION = "combination"
"""The tag of a sweep's job: the values of the settings that vary, without the seed."""

MOST_SETTINGS = 12
"""Maximum number of columns with settings. Users can add others in MLflow's menu."""

MOST_GROUPS = 100
"""Maximum number of groups that are folded when the page opens."""

MOST_LISTED = 20
"""Maximum number of views to list in MLflow. Its list has room for 40, including views that users have saved.

The others can be opened by their links only.
"""

LONGEST = 20_000
"""Maximum number of characters of an experiment's tag: MLflow's limit."""

_NO_JOBS = "attributes.start_time > 0 and tags.`mlflow.parentRunId` IS NULL"
"""A search for runs that are not jobs of a sweep. Without its first part, MLflow would search for a name."""

_ANSWER = "Result"
_OTHER_SECTIONS = ("test", "val", "train", "export", "memory")
"""Sections of the charts that MLflow makes for the other metrics, by the beginning of their names; they are folded."""


@dataclass(frozen=True)
class View:
    """A view of the runs of an experiment."""

    name: str
    """Its name in MLflow's list of views."""
    settings: Sequence[str]
    """Parameters, one column each."""
    metrics: Sequence[str]
    """Metrics, one column each. The first one sorts the runs."""
    is_lower_better: bool
    """Whether a lower value of the first metric is better."""
    combinations: Sequence[str] = ()
    """Values of the tag `combination`. Each is one row with the mean of its runs. If empty, one row per run."""
    parent: str | None = None
    """The id of the sweep's run whose jobs are shown; None: all runs."""

    @property
    def key(self) -> str:
        """The key of the view. It does not change, so a run or a sweep that is sent again replaces its view."""
        return RUNS if self.parent is None else key_of(self.parent)

    def state(self) -> dict[str, Any]:
        """Return the view in the format of MLflow's page."""
        settings = [f"params.`{name}`" for name in self.settings[:MOST_SETTINGS]]
        columns = [*settings, *(f"metrics.`{name}`" for name in self.metrics)]
        name = "attributes.`Run Name`"
        state = {
            "searchFilter": f"tags.`mlflow.parentRunId` = '{self.parent}'" if self.parent else _NO_JOBS,
            "orderByKey": f"metrics.`{self.metrics[0]}`",
            "orderByAsc": self.is_lower_better,
            "startTime": "ALL",
            "lifecycleFilter": "Active",
            "datasetsFilter": [],
            "modelVersionFilter": "All Runs",
            "selectedColumns": [*columns, "attributes.`Duration`"],
            "columnOrder": [name, "runDateAndNestInfo", *columns, "duration"],
            "columnWidths": {**{column: _width(column) for column in columns}, **_WIDTHS[bool(self.combinations)]},
            "runsHiddenMode": "FIRST_20_RUNS",  # in charts; the first are the best
            "compareRunCharts": list(self._charts()),
            "compareRunSections": [
                {"uuid": section, "name": section, "display": section == _ANSWER, "isReordered": False}
                for section in (_ANSWER, *_OTHER_SECTIONS)
            ],
            "isAccordionReordered": True,  # else sections are sorted by their names
            "hideEmptyCharts": True,
        }
        if self.combinations:
            key = {"mode": "tag", "groupByData": COMBINATION}
            state["groupBy"] = {"aggregateFunction": "average", "groupByKeys": [key]}
            groups = self.combinations[:MOST_GROUPS]
            state["groupsExpanded"] = {f"tag.{COMBINATION}.{value}": False for value in groups}
        return state

    def _charts(self) -> Iterator[dict[str, Any]]:
        """Yield the charts: curves by step, the sorting metric by run, and that metric against each setting."""
        own = {"metricSectionId": _ANSWER, "deleted": False, "isGenerated": False}
        metric = self.metrics[0]
        curves = [name.replace("/best_", "/") for name in self.metrics if "/best_" in name]
        for name in dict.fromkeys([*curves, "val/loss"]):
            yield {**_CURVE, **own, "uuid": f"curve {name}", "metricKey": name, "selectedMetricKeys": [name]}
        yield {**own, "type": "BAR", "uuid": "bar", "metricKey": metric, "displayName": metric}
        for name in self.settings[:4] if self.parent else ():
            axes = {"xaxis": {"key": name, "type": "PARAM"}, "yaxis": {"key": metric, "type": "METRIC"}}
            yield {**own, "type": "SCATTER", "uuid": f"setting {name}", **axes, "runsCountToCompare": 100}
        if self.parent and len(self.settings) > 1:
            chosen = {"selectedParams": list(self.settings[:6]), "selectedMetrics": [metric]}
            yield {**own, "type": "PARALLEL", "uuid": "parallel", **chosen, "showAllRuns": False}


_CURVE = {
    "type": "LINE",
    "lineSmoothness": 0,
    "xAxisKey": "step",
    "xAxisScaleType": "linear",
    "scaleType": "linear",
    "range": {},
    "yAxisKey": "metric",
    "yAxisExpressions": [],
    "useGlobalXaxisKey": True,
    "useGlobalLineSmoothing": True,
}


def key_of(run_id: str) -> str:
    """Return the key of the view of a sweep's jobs, by the id of the sweep's run."""
    return f"sweep-{run_id[:12]}"


def query(key: str, charts: bool = False) -> str:
    """Return the query of an address that opens a view on an experiment's page of runs: its table, or its charts."""
    return f"viewStateShareKey={key}" + ("&compareRunsMode=CHART" if charts else "")


def changed_tag(view: View, tags: Mapping[str, str], now: int) -> tuple[str, str] | None:
    """Return the key and the value of the tag that holds `view`; None if `tags` already have it.

    The view of all runs keeps the columns of settings that earlier runs have added to it.

    Args:
        view: The view.
        tags: The tags of the experiment.
        now: The time, in milliseconds since 1970.
    """
    key = f"{TAG}{view.key}"
    name, created, before = _read(tags.get(key, ""))
    if view.parent is None:
        columns = [str(column) for column in before.get("selectedColumns", [])]
        earlier = [column[8:-1] for column in columns if column.startswith("params.`")]
        view = replace(view, settings=list(dict.fromkeys([*earlier, *view.settings])))
    state = view.state()
    if before == state:
        return None
    listed = sum(bool(_read(value)[0]) for other, value in tags.items() if other.startswith(TAG) and other != key)
    is_listed = bool(name) or (not before and listed < MOST_LISTED)
    value = _write(view.name if is_listed else "", created or now, now, state)
    if len(value) > LONGEST:  # thousands of combinations, or very long ones
        state.pop("groupsExpanded", None)
        value = _write(view.name if is_listed else "", created or now, now, state)
    return (key, value) if len(value) <= LONGEST else None


def _write(name: str, created: int, now: int, state: Mapping[str, Any]) -> str:
    """Return the value of a tag. For a view without a name, which MLflow does not list, it is only the state."""
    packed = base64.b64encode(zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 9)).decode()
    view = {"name": name, "createdAt": created, "updatedAt": now, "state": f"deflate;{packed}"}
    return json.dumps(view, ensure_ascii=False) if name else str(view["state"])


def _read(value: str) -> tuple[str, int, dict[str, Any]]:
    """Return the name, the time and the state in a tag's value. They are empty if it cannot be read."""
    name, created = "", 0
    with suppress(ValueError, TypeError, KeyError, zlib.error):
        if value.startswith("{"):
            view = json.loads(value)
            name, created, value = str(view["name"]), int(view["createdAt"]), str(view["state"])
        if value.startswith("deflate;"):
            value = zlib.decompressobj().decompress(base64.b64decode(value[8:]), 10 * LONGEST).decode()
        state = json.loads(value)
        return name, created, state if isinstance(state, dict) else {}
    return name, created, {}


_WIDTHS = {
    False: {"attributes.`Run Name`": 260, "runDateAndNestInfo": 130},
    True: {"attributes.`Run Name`": 300, "runDateAndNestInfo": 80},  # a group has no date
}
"""Widths of the first two columns in pixels, by whether runs are grouped."""


def _width(column: str) -> int:
    """Return the width of a column in pixels, so that its heading is legible."""
    kind, _, name = column.partition(".")
    return min(max(120 if kind == "metrics" else 80, 7 * len(name) + 16), 180)

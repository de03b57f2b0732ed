"""The metrics that predictions in a file are compared by, by their names."""

from collections.abc import Mapping

from stages.metrics.classes import Accuracy, LogLoss
from stages.metrics.labels import ExactMatch, MacroF1
from stages.metrics.metric import Metric
from stages.metrics.numbers import R2, Mae, Rmse

KNOWN: Mapping[str, Metric] = {
    metric.name: metric for metric in (Accuracy(), MacroF1(), ExactMatch(), Rmse(), Mae(), R2(), LogLoss())
}

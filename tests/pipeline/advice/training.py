"""Advice of networks, training, evaluation and export, which is given while a run goes on."""

from tests.pipeline.advice import Case

CASES: dict[str, Case] = {}

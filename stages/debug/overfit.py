"""The `overfit` stage of a debug run: whether the network has memorized one batch, and in how many steps."""

from dataclasses import dataclass

from stages.errors import UserError
from stages.reporter import Reporter, Silent
from stages.results import Record, Trained


@dataclass(kw_only=True)
class OverfitSettings:
    """The loss below which the batch has been learned; steps of an epoch."""

    _target_: str = "stages.debug.overfit.overfit"
    loss: float = 0.01
    steps_per_epoch: int = 10


@dataclass(frozen=True)
class Verdict:
    """steps: after which the mean loss of the last `steps_per_epoch` was low enough."""

    steps: int
    loss: float
    record: Record = Record()


def overfit(trained: Trained, settings: OverfitSettings, reporter: Reporter | None = None) -> Verdict:
    """Returns in how many steps the loss of the one batch fell below `settings.loss`.

    Raises:
        UserError: where it did not.
    """
    losses = [row["train/loss"] for row in trained.history]
    steps = len(losses) * settings.steps_per_epoch
    last = losses[-1]
    accuracy = trained.history[-1]["train/accuracy"]
    if last > settings.loss:
        raise UserError(
            f"after {steps:,} steps on one batch its loss is {last:.4f} (at first {losses[0]:.4f}, at its lowest "
            f"{min(losses):.4f}; accuracy {accuracy:.1%}): the network does not memorize it",
            f"a loss below {settings.loss:g}; what remains at an accuracy of 100 % may be a regularizer's",
            "another optimizer.learning_rate, debug.steps=<more>, or a network without a bottleneck",
        )
    (reporter or Silent()).log(
        f"overfit: the batch is memorized. Its loss fell from {losses[0]:.4f} to {last:.4f} in {steps:,} steps"
    )
    metrics = {"debug/overfit_steps": steps, "debug/overfit_loss": last}
    return Verdict(steps, last, Record(metrics=metrics))

"""Runs a search: its trials under one parent run, each drawn from the results of those before."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pipeline.config.options import Options
from pipeline.console import Console
from pipeline.exit_codes import DONE, SWEEP_FAILED
from pipeline.paths import shorter
from pipeline.planning.earlier import plan_of
from pipeline.planning.job import SweepRun
from pipeline.provenance.source_digest import new_for_other_code
from pipeline.run.facts import show_plan
from pipeline.run_folder.lock import locked
from pipeline.search.best import run_command, write_experiment
from pipeline.search.checks import Search, epochs_of
from pipeline.search.plots import draw
from pipeline.search.study import STUDY, Study, Trial
from pipeline.search.trials import Trials
from pipeline.sweep.batch import run_batch
from pipeline.sweep.display import Display
from pipeline.sweep.index import read_search, sweep_folders, sweep_status
from pipeline.sweep.parent import finish, is_sent, mark_killed, new_sweep_folder, parent_run
from pipeline.sweep.places import Place, deal_out, opened
from pipeline.system import signals
from pipeline.system.signal_listener import Interrupted
from pipeline.system.streams import all_written
from pipeline.tracking.journal import NAME as JOURNAL
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError


def run_search(search: Search, options: Options, console: Console) -> int:
    """Runs the search and returns its exit code: 0, 3 where no trial is complete, 130 or 143 where it was stopped.

    The last search for the same is resumed if it has not finished, or if more trials are wanted now: trials that have
    ended stay as they are, and one that was interrupted is resumed.

    Args:
        options: those of the groups, to write the best configuration by.

    Raises:
        UserError: where the search that is to be resumed is for something else.
    """
    first = search.first
    if first.dry_run:
        _say_plan(search, console)
        show_plan(first, plan_of(first), console)
        return all_written(DONE)
    with opened(deal_out(search.settings, [first]), [first], console) as places:
        return _run_checked(search, options, console, places)


def _run_checked(search: Search, options: Options, console: Console, places: Sequence[Place]) -> int:
    first = search.first
    folder = resumed = _to_resume(search, console.log)
    if folder is None:
        folder = new_sweep_folder(first)
        console.log(f"search {folder.name}")
    else:
        console.log(f"resuming search {folder.name}")
    _say_plan(search, console)
    with locked(folder):
        if resumed is not None and _to_resume(search, lambda line: None) != folder:
            raise UserError(f"{shorter(folder)} has finished meanwhile", "a search that has not", "resume=never")
        search.sources.write(folder)
        study = Study(folder, search.plan, search.axes)
        return _run_trials(search, study, folder, options, console, places)


def _to_resume(search: Search, log: Callable[[str], None]) -> Path | None:
    """Returns the folder of the search to resume, by `resume`; None for a new one.

    A search that has finished is one to resume where more trials are wanted, or the store does not have all of it.
    """
    choice = search.first.resume
    sweeps = search.first.outputs / "sweeps"
    if choice == "never":
        return None
    if choice != "auto":
        folder = Path(choice) if (Path(choice) / STUDY).is_file() else sweeps / choice
        if read_search(folder).get("identity") != search.identity:
            raise UserError(
                f"resume={choice} is no search for this: its space, its goals or the other settings differ",
                f"auto, never, a search in {shorter(sweeps)}",
                "resume=auto",
            )
        return folder.resolve()
    for folder in reversed(sweep_folders(search.first.outputs)):
        before = read_search(folder)
        if before.get("identity") != search.identity:
            continue
        if sweep_status(folder) == "FINISHED" and _is_complete(folder, search):
            return None
        if before["code"] != search.sources.digest:
            log(new_for_other_code(search.sources, folder, folder.name, "search"))
            return None
        return folder
    return None


def _is_complete(folder: Path, search: Search) -> bool:
    """Returns whether no more trials are wanted, and the store has everything of those there are."""
    trials = (path.parent for path in folder.glob(f"*/{JOURNAL}"))
    wants_more = Study(folder, search.plan, search.axes).wants_more()
    return not wants_more and is_sent(folder, trials, search.first.tracking)


def _say_plan(search: Search, console: Console) -> None:
    """Prints trials, goal and space."""
    plan = search.plan
    random = f", the first {plan.startup_trials} at random" if plan.sampler in ("tpe", "cmaes") else ""
    pruned = {None: "none pruned", "median": "pruned by the median", "halving": "pruned by successive halving"}
    console.log(f"{'trials':8} {plan.trials:,} by {plan.sampler}{random}, {pruned[plan.pruner]}")
    console.log(f"{'goal':8} {', '.join(f'{goal.direction} {goal.metric}' for goal in plan.goals)}")
    for label, axis in zip(("space", *[""] * len(search.axes)), search.axes, strict=False):
        console.log(f"{label:8} {axis.key}: {axis.text}")


def _run_trials(
    search: Search, study: Study, folder: Path, options: Options, console: Console, places: Sequence[Place]
) -> int:
    """Runs the trials that are left, and ends the search."""
    first = search.first
    parent: Tracker = Tracker()
    trials = Trials(search, study, folder, SweepRun(None, first.name), console)
    if not read_search(folder):
        trials.write()  # by which the same command finds it
    code: int | None = None
    with ExitStack() as held, signals.listening(), signals.uninterrupted():
        try:
            name = f"search of {search.plan.trials} trials"
            parent = parent_run(first, folder, search.plan.trials, name, console)
            held.enter_context(signals.on_forced_exit(lambda request: mark_killed(parent)))
            trials.sweep = SweepRun(parent.run_id, first.name)
            display = Display(console, trials.titles, search.plan.trials)
            run_batch(trials.jobs(), display, search.settings, places, trials.ended)
        except Interrupted as interrupted:
            code = interrupted.exit_code
        except UserError as error:
            console.error(str(error))
            code = SWEEP_FAILED
        if code is None:
            code = DONE if study.best() else SWEEP_FAILED
        with signals.ending(code):
            more = _results(search, study, folder, options, console)
            trials.write(finish(folder, parent, trials.begun, code, console, more))
            return code


def _results(search: Search, study: Study, folder: Path, options: Options, console: Console) -> list[Path]:
    """Prints the best trials; draws the search and writes the best configuration; returns the files."""
    plan = search.plan
    trials = study.trials()
    best = study.best()
    counts = {state: sum(trial.state == state for trial in trials) for state in ("COMPLETE", "PRUNED", "FAIL")}
    console.log(
        f"\n{len(trials)} trials: {counts['COMPLETE']} complete, {counts['PRUNED']} pruned, {counts['FAIL']} failed"
    )
    saved = epochs_saved(search, trials)
    if saved is not None:
        console.log(f"{'pruning':11} left out {saved:.0%} of the epochs")
    paths = draw(study, plan.goals, folder)
    for number, trial in enumerate(best, 1):
        values = ", ".join(f"{goal.metric} {value:.4g}" for goal, value in zip(plan.goals, trial.values, strict=True))
        console.log(f"{'best':11} trial {trial.ordinal}: {values}")
        name = "best" if len(best) == 1 else f"best_{number}"
        composed = search.compose(trial.lines)
        comment = f"Trial {trial.ordinal} of search {folder.name}: {values}"
        paths.append(write_experiment(composed, comment, options, folder, name))
        console.log(f"{'':11} {' '.join(trial.lines)}")
        console.log(f"{'run it':11} {run_command(composed, options, folder, name)}")
    return paths


def epochs_saved(search: Search, trials: Sequence[Trial]) -> float | None:
    """Returns the share of all epochs that pruning has left out; None where none was pruned."""
    pruned = [trial for trial in trials if trial.state == "PRUNED"]
    epochs = epochs_of(search.first)
    if not pruned or not epochs:
        return None
    run = [trial for trial in trials if trial.state in ("COMPLETE", "PRUNED")]
    return sum(epochs - trial.epochs for trial in pruned) / (epochs * len(run))

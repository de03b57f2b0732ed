"""`python -m tests.chaos.mutations`: break the code in one line at a time, and run the tests that must fail then.

Each mutation is made in a copy of the source tree. It is an error if all of its tests pass, or if its line is no longer
in its file. `--tree` names a different source tree, such as one of another commit.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 900

NUMPY = "tests/stages/networks/test_float64.py::test_everything_at_once_is_numpy[2]"
DECAY = "tests/stages/optimization/test_decay.py"
MASKS = "tests/stages/tasks/test_segmentation.py"
BATCHES = "tests/stages/data/test_batches.py"
MASK_FILES = "tests/stages/data/test_masks.py"
MEMBERS = "tests/stages/tasks/test_members.py"
TABLES = "tests/stages/training/test_tables.py"
CALIBRATION = "tests/stages/training/test_calibration.py"
BASELINE = "tests/stages/evaluation/test_baseline.py"
LOOP = "tests/stages/training/test_loop.py"
STRATEGIES = "tests/stages/distribution/test_strategies.py"
RANDOM_LAYERS = "tests/stages/networks/test_random_layers.py"
CHECKPOINTS = "tests/stages/training/test_checkpoints.py"
SIGNALS = "tests/pipeline/system/test_signals.py"
REUSE = "tests/pipeline/decide/test_reuse.py"
SERVING = "tests/pipeline/serving/test_serving.py"
FOLLOWER = "tests/pipeline/tracking/test_follower.py"


@dataclass(frozen=True)
class Mutation:
    """A replacement of `old`, which occurs once in the file `path`, by `new`. One of `tests` must fail then."""

    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def mutation(path: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(path, old, new, tests)


MUTATIONS = (
    # Training
    mutation("stages/optimization/optimizers.py", "if settings.clip_norm:", "if False:", NUMPY),
    mutation(
        "stages/training/step.py", "self._terms(result.buffers, examples, replica)", "result.buffers",
        f"{STRATEGIES}::test_a_strategy_equals_one_device[BatchNorm synchronized-mirrored 2]",
    ),
    mutation("stages/training/step.py", "tf.cast(count * scale,", "tf.cast(scale,", NUMPY),
    mutation("stages/networks/keras_internals.py", "optimizer._all_reduce_sum_gradients = list", "pass", NUMPY),
    mutation("stages/tasks/classification.py", "(1.0 - self.label_smoothing) * plain", "plain", NUMPY),
    mutation("stages/optimization/optimizers.py", "self.peak * (step + 1.0)", "self.peak * step", NUMPY),
    mutation("stages/optimization/optimizers.py", "len(variable.shape) <= 1", "False", DECAY),
    mutation(
        "stages/optimization/loss_scale.py", "self.skipped_steps + skipped", "self.skipped_steps",
        f"{STRATEGIES}::test_an_overflow_in_one_replica_skips_one_step_everywhere[mirrored 2]",
    ),
    mutation(
        "stages/optimization/gradients.py", "first_row + first", "first_row",
        f"{LOOP}::test_parts_of_a_batch_drop_what_the_whole_one_does",
    ),
    mutation(
        "stages/training/step.py", "step, self._first_row(step, replica), scale",
        "step, 0 * self._first_row(step, replica), scale",
        f"{STRATEGIES}::test_a_strategy_equals_one_device[Adam, dropout-mirrored 2]",
    ),
    mutation(
        "stages/networks/random_layers.py", "begin % _BLOCK", "begin * 0", RANDOM_LAYERS,
    ),
    mutation(
        "stages/optimization/gradients.py", "step * 256", "step * 0",
        f"{LOOP}::test_other_rows_and_steps_drop_other_units_and_the_same_ones_the_same",
    ),
    mutation(
        "stages/tasks/classification.py",
        "argmax(outputs, axis=-1, output_type=dtype",
        "argmin(outputs, axis=-1, output_type=dtype",
        f"{STRATEGIES}::test_scores_equal_numpy_over_the_same_predictions[mirrored 3]",
    ),
    mutation(
        "stages/metrics/estimates.py", "return mean, parts * (values - mean)", "return mean, parts * values",
        "tests/stages/evaluation/test_weights.py",
    ),
    mutation(
        "stages/metrics/metric.py", "influences += slope * part[:, place]", "influences += part[:, place]",
        "tests/stages/metrics/test_metric.py",
    ),
    mutation(
        "stages/metrics/metric.py", "tf.reduce_sum(tf.cast(part, dtype) * wide, axis=0)",
        "tf.reduce_sum(tf.cast(part, dtype), axis=0)", "tests/stages/metrics/test_metric.py",
    ),
    mutation(
        "stages/metrics/known.py", "value + influences - influences.mean()", "value + 0 * influences",
        "tests/stages/evaluation/test_own_task.py",
    ),
    mutation(
        "stages/metrics/keras_metric.py", "first = [tf.zeros(", "first = [tf.ones(",
        "tests/stages/tasks/test_chosen.py",
    ),
    mutation(
        "stages/metrics/keras_metric.py", "*given, sample_weight=weights)", "*given, sample_weight=None)",
        "tests/stages/tasks/test_chosen.py",
    ),
    mutation(
        "stages/tasks/chosen.py", "    if not adds_up:", "    if False:", "tests/stages/tasks/test_chosen.py",
    ),
    mutation(
        "stages/tasks/chosen.py", "if shape != (len(targets),) or", "if False and", "tests/stages/tasks/test_chosen.py",
    ),
    mutation(
        "stages/tasks/task.py", "in metric.sums(columns, weights).items()",
        "in metric.sums(columns, 1 + 0 * weights).items()",
        "tests/stages/tasks/test_chosen.py",
    ),
    mutation(
        "pipeline/comparison/choice.py", "sign = -1 if is_lower else 1", "sign = 1",
        "tests/pipeline/comparison/test_comparison.py", "-k", "chosen_on_validation",
    ),
    mutation(
        "stages/collectives.py", "assign_add(tf.cast(value, tf.float64))",
        "assign(tf.cast(value, tf.float64))",
        f"{STRATEGIES}::test_means_equal_numpy_over_the_same_predictions[central_storage 3]",
    ),
    mutation(
        "stages/networks/batch_norm.py", "_sum(tf.reduce_sum(squares, axes)) / count", "tf.reduce_mean(squares, axes)",
        "tests/stages/networks/test_networks.py::test_two_replicas_equal_one_device",
    ),
    # Segmentation
    mutation(
        "stages/tasks/segmentation.py",
        "tf.where(counts[..., tf.newaxis], tf.cast(outputs, dtype), tf.constant(1 / self.head.units, dtype))",
        "tf.cast(outputs, dtype)", MASKS, "-k", "change_nothing",
    ),
    mutation("stages/tasks/segmentation.py", "counts & (classes == predicted)", "classes == predicted", MASKS),
    mutation("stages/tasks/segmentation.py", "(weights / (mean or 1.0))", "(weights / 1.0)", MASKS),
    mutation(
        "stages/tasks/segmentation.py", "pixels.sum(axis=1), pixels[:, majority]",
        "pixels.sum(axis=1), pixels.sum(axis=1)", "tests/stages/evaluation/test_masks.py",
    ),
    mutation("stages/metrics/segmentation.py", "(pixels + predicted - intersection)", "(pixels + predicted)", MASKS),
    mutation(
        "stages/metrics/segmentation.py", "if rarest_class(columns) < LEAST_OF_MASKS:\n            return f",
        "if False:\n            return f", MASKS,
    ),
    mutation(
        "stages/networks/applications.py", "keras.Model(backbone.input, [backbone.output, *levels])",
        "keras.Model(backbone.input, [backbone.output, *levels[::-1]])",
        "tests/stages/networks/test_maps.py", "-k", "decoder",
    ),
    mutation(
        "pipeline/serving/masks.py", "translation = (wanted - sides * scale) / 2", "translation = 0 * sides",
        "tests/pipeline/serving/test_masks.py", "-k", "lies_on",
    ),
    # Tables
    mutation("stages/tasks/members.py", "tf.repeat(targets, members, axis=0)", "tf.tile(targets, [members])", MEMBERS),
    mutation("stages/tasks/classification.py", "tf.nn.log_softmax(outputs), axis=1) -", "outputs, axis=1) -", MEMBERS),
    mutation("stages/networks/tabular.py", "layer.kernel.assign(", "str(", TABLES),
    mutation("stages/training/calibration.py", "variable / temperature", "variable * temperature", CALIBRATION),
    mutation("stages/settings/by_rows.py", "rows / 64", "rows / 32", "tests/stages/load/test_by_rows.py"),
    mutation("stages/evaluation/boosting.py", '"X_val": val', '"X_val": val if 0 else train', BASELINE),
    # Data
    mutation("stages/data/masks.py", "* before[axis] / after[axis]", "* after[axis] / before[axis]", MASK_FILES),
    mutation("stages/data/loading.py", "(*files.paths, *files.masks)", "files.paths", MASK_FILES),
    mutation(
        "stages/data/batches.py", "tf.maximum(epoch * per_epoch, first_step)", "epoch * per_epoch", BATCHES,
        "-k", "starts_late",
    ),
    mutation("stages/data/batches.py", "tf.cast(epoch, tf.int32)])", "0])", BATCHES, "-k", "permutation"),
    mutation("stages/data/batches.py", "(replica + 1) * count // replicas)", "count)", BATCHES, "-k", "share"),
    mutation("stages/data/batches.py", "tf.constant(1.0 / replicas,", "tf.constant(1.0,", BATCHES, "-k", "share"),
    mutation(
        "stages/tasks/classification.py", 'if sums_to_one != (given == "probabilities"):', "if False:",
        "tests/stages/test_model.py", "-k", "told_apart",
    ),
    mutation(
        "stages/model.py", 'network.set_weights(build_on_one_device("float32", {}).get_weights())', "pass",
        "tests/stages/networks/test_initial_weights.py", "-k", "mlp",
    ),
    mutation(
        "stages/evaluation/eval_step.py", "            self._totals.reset()\n", "",
        "tests/stages/training/test_memory.py", "-k", "halves",
    ),
    mutation(
        "stages/callbacks.py", "logs |= numbers(passed)", "pass",
        "tests/stages/callbacks/test_callbacks.py", "-k", "one_mapping",
    ),
    # Checkpoints
    mutation(
        "stages/checkpoints/files.py", "raise ValueError(f\"the file is damaged ({error})\") from error",
        "return Checkpoint({\"step\": 0})", CHECKPOINTS, "-k", "bit",
    ),
    mutation(
        "stages/checkpoints/files.py", "[*reversed(checkpoint_files(folder)), ", "[*checkpoint_files(folder), ",
        CHECKPOINTS, "-k", "damaged_checkpoint",
    ),
    # Commands and runs
    mutation(
        "pipeline/runs/folder.py", 'if before is not None and before.status == "FINISHED":', "if False:",
        "tests/pipeline/execute/test_two_commands.py", "-k", "single-0",
    ),
    mutation(
        "pipeline/launch/local.py", "claimed(decision, supervises=True)", "claimed(decision, is_supervised=True)",
        "tests/pipeline/execute/test_two_commands.py", "-k", "cluster-4",
    ),
    mutation(
        "pipeline/paths.py", "now = max(now, ", "max(now, ", "tests/pipeline/decide/test_resume.py", "-k", "clock",
    ),
    mutation(
        "stages/settings/ranges.py", "if pattern and item is not None", "if False and item is not None",
        "tests/pipeline/config/test_config.py", "-k", "wrong and devices",
    ),
    mutation(
        "pipeline/execute/child.py", "    guard_output()\n", "",
        "tests/pipeline/redaction/test_secrets.py", "-k", "in_any_file",
    ),
    mutation(
        "pipeline/provenance/identity.py", '"cluster", "name",', '"name",',
        "tests/pipeline/decide/test_resume.py", "-k", "without_an_effect",
    ),
    mutation(
        "pipeline/provenance/identity.py", '"train.checkpoint_every_seconds",', '"train.epochs",',
        "tests/pipeline/decide/test_resume.py", "-k", "identity",
    ),
    mutation(
        "pipeline/comparison/rows.py", " and self.pruned_after is None", "",
        "tests/pipeline/search/test_search.py", "-k", "what_it_says",
    ),
    mutation(
        "pipeline/comparison/answer.py", 'lines.append("sweep=none")', "pass",
        "tests/pipeline/search/test_best.py", "-k", "very_settings and sweep",
    ),
    mutation(
        "pipeline/decide/decision.py", "if job.only_trains:", "if False:",
        "tests/pipeline/sweep/test_sweep.py", "-k", "only_the_best",
    ),
    mutation(
        "pipeline/execute/reporter.py", "if self.is_training and self.turn.is_awaited:", "if False:",
        "tests/pipeline/execute/test_runner.py", "-k", "waits_for_its_turn",
    ),
    mutation(
        "pipeline/sweep/queue.py", "if not self.overlaps or not self._running:", "if True:",
        "tests/pipeline/sweep/test_queue.py", "-k", "trains_after",
    ),
    mutation(
        "pipeline/search/study.py", "journal.truncate(", "abs(", "tests/pipeline/search/test_study.py", "-k", "whole",
    ),
    mutation(
        "pipeline/runs/journal.py", "return not self.unsent and", "return True and",
        "tests/pipeline/tracking/test_pending.py", "-k", "closed",
    ),
    mutation(
        "pipeline/redaction.py", "(part.isupper() and ", "(False and ",
        "tests/pipeline/redaction/test_secrets.py", "-k", "names_of_secrets",
    ),
    mutation(
        "pipeline/exit_codes.py", "TIMED_OUT = 124", "TIMED_OUT = 143", SIGNALS, "-k", "time_limit",
    ),
    mutation(
        "pipeline/system/signals.py", "if now - last < BOUNCE_SECONDS:", "if False:", SIGNALS,
        "-k", "counts_once",
    ),
    mutation(
        "pipeline/system/signals.py", "    if _listener.request is not None and _listener.count > _listener.deferred:",
        "    if _listener.request is not None:", SIGNALS, "-k", "interrupts_no_code",
    ),
    mutation(
        "pipeline/system/signals.py", "        _set(listener, *before)", "        pass", SIGNALS, "-k", "its_own_time",
    ),
    mutation(
        "pipeline/launch/supervise.py", "            on_end(handle, handle.exit_code)", "            pass",
        "tests/pipeline/launch/test_supervise.py", "-k", "reported_once",
    ),
    mutation(
        "pipeline/comparison/choice.py", "mean_of(row, metric), row.speed)", "mean_of(row, metric), 0.0)",
        "tests/pipeline/comparison/test_comparison.py", "-k", "fastest",
    ),
    mutation(
        "stages/evaluation/paired_tests.py", "by_example = second.mean(axis=0)", "by_example = first.mean(axis=0)",
        "tests/stages/evaluation/test_paired_tests.py", "-k", "bootstrap",
    ),
    mutation(
        "pipeline/launch/local.py", "if lost is None or not left or", "if True or",
        "tests/pipeline/launch/test_cluster.py", "-k", "whoever_is_lost",
    ),
    # Results that a later run takes over, models in use
    mutation("stages/checkpoints/saved.py", "    model.network.set_weights(weights)\n", "", REUSE),
    mutation(
        "stages/networks/rescaling.py", "dataclasses.replace(dataset, scalings=scalings, ",
        "dataclasses.replace(dataset, ", REUSE, "-k", "scaling",
    ),
    mutation(
        "stages/checkpoints/saved.py", "        if now.get(name) != before:", "        if False:", REUSE, "-k", "other",
    ),
    mutation(
        "pipeline/provenance/identity.py", "str(before.get(name)) != str(now.get(name))", "False", REUSE,
        "-k", "refused",
    ),
    mutation("pipeline/serving/server.py", "if wrong or not answers:", "if False:", SERVING, "-k", "wrong_requests"),
    mutation(
        "pipeline/comparison/comparison.py", "pair(base, row, values)", "pair(row, base, values)",
        "tests/pipeline/comparison/test_comparison.py", "-k", "answer_in_a_sentence",
    ),
    mutation(
        "stages/evaluation/paired_tests.py", "parts += _scaled(pooled or (), singles)", "pass",
        "tests/pipeline/comparison/test_choice.py", "-k", "single_run",
    ),
    mutation(
        "pipeline/comparison/choice.py", "not speeds[row].is_distinguishable", "speeds[row].is_distinguishable",
        "tests/pipeline/comparison/test_choice.py", "-k", "cheapest",
    ),
    # Statistics in the EMA, weights of classes, draws with XLA
    mutation(
        "stages/optimization/ema.py", "[*weights, *statistics]", "[*weights]", "tests/stages/optimization/test_ema.py",
    ),
    mutation(
        "stages/training/synchronous.py", "if setup.strategy.in_sync == 1:", "if False:", LOOP, "-k", "whole_step",
    ),
    mutation(
        "stages/optimization/xla.py", ">= rows  #", "> rows  #", LOOP, "-k", "left_out",
    ),
    mutation(
        "stages/checkpoints/attributes.py", "if not _is_secret(key, encoded):", "if True:",
        "tests/pipeline/redaction/test_secrets.py", "-k", "any_file",
    ),
    mutation(
        "stages/optimization/gradients.py", "            weights *= by_target", "            pass",
        "tests/stages/training/test_weights.py",
    ),
    mutation(
        "stages/networks/random_layers.py",
        "return tf.cast(low + tf.cast(bits % tf.cast(high - low, bits_of), whole), dtype)",
        "return original(shape, minval, maxval, dtype, seed)", "tests/stages/networks/test_random_layers.py",
    ),
    # One operation a variable, decoders, clusters, debug runs
    mutation(
        "stages/optimization/exact_apply.py", "optimizer.iterations.value + 1", "optimizer.iterations.value + 2",
        "tests/stages/optimization/test_fused.py",
    ),
    mutation(
        "stages/data/decode.py", "orientation = tf.where(is_jpeg, _orientation(content), 1)", "orientation = 1",
        "tests/stages/data/test_decoding.py", "-k", "turned",
    ),
    mutation(
        "pipeline/tracking/mlflow_run.py", "if self._holder(alias) != holder:", "if False:",
        "tests/pipeline/tracking/test_registry.py", "-k", "during",
    ),
    mutation(
        "pipeline/launch/slurm.py", "range(int(times or 1))", "range(1)", "tests/pipeline/launch/test_launchers.py",
    ),
    mutation(
        "stages/debug.py", "(examples % batch_size or batch_size)", "batch_size",
        "tests/stages/test_debug_runs.py",
    ),
    mutation("benchmarks/page.py", "    if count != 1:", "    if False:", "tests/benchmarks/test_page.py"),
    mutation(
        "pipeline/execute/stages.py", "with others_needed():", "if True:",
        "tests/pipeline/execute/test_runner.py::test_a_worker_that_is_lost_anywhere_in_a_stage_is_one_line",
    ),
    # The process that follows runs
    mutation(
        "pipeline/tracking/follower.py", "if self.ended() is None or is_early:", "if True:", FOLLOWER,
        "-k", "started_again",
    ),
    mutation(
        "pipeline/tracking/follower.py", 'if not (journal.is_closed and journal.status == "FINISHED"):', "if False:",
        FOLLOWER, "-k", "started_again",
    ),
    mutation(
        "pipeline/tracking/follower.py", "        self.revive()\n", "", FOLLOWER, "-k", "is_replaced",
    ),
    mutation(
        "pipeline/tracking/follower.py", "threading.Timer(seconds, os._exit, (1,)).start()", "pass", FOLLOWER,
        "-k", "ends_soon",
    ),
    mutation(
        "pipeline/tracking/follower.py", "end_without_process(self._journal.folder)", "False", FOLLOWER,
        "-k", "rest_of_its_journal",
    ),
    mutation(
        "pipeline/tracking/follower.py", "return not self._is_same_store or (has_ended and self._run is not None)",
        "return not self._is_same_store", FOLLOWER, "-k", "takes_over",
    ),
    mutation(
        "pipeline/tracking/follower.py", "self._upload.rejected += delivery.refused", "pass", FOLLOWER,
        "-k", "live_metrics",
    ),
    mutation(
        "pipeline/tracking/follower.py", 'journal.status == "FINISHED" or (has_ended and journal.status in ENDED)',
        "journal.status in ENDED", FOLLOWER, "-k", "tries_it_again",
    ),
    mutation(
        "pipeline/tracking/follower.py",
        "if self._has_new_session or (self._run is None and self._has_no_process):", "if self._has_new_session:",
        FOLLOWER, "-k", "before_its_session",
    ),
    mutation(
        "pipeline/tracking/follower.py", "redaction.learned.update(secrets)", "pass", FOLLOWER, "-k", "secrets",
    ),
)  # fmt: skip


def copied(tree: Path, folder: Path) -> Path:
    """Return a copy of the parts of `tree` that tests need."""
    for name in ("pipeline", "stages", "conf", "tests", "benchmarks", "docs"):
        shutil.copytree(tree / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in tree.glob("*.*"):
        if path.is_file():
            shutil.copy(path, folder)
    return folder


def outcome(one: Mutation, tree: Path) -> str:
    """Return `caught`, `survived`, or what is wrong with the mutation itself."""
    with tempfile.TemporaryDirectory() as name:
        folder = copied(tree, Path(name))
        path = folder / one.path
        text = path.read_text() if path.exists() else ""
        if text.count(one.old) != 1:
            return f"BROKEN: the text stands {text.count(one.old)} times in {one.path}"
        path.write_text(text.replace(one.old, one.new))
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *one.tests]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
        if done.returncode > 1:
            return f"BROKEN: pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}"
        return "caught" if done.returncode == 1 else "survived"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos.mutations", description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the folder of the code and its tests")
    parser.add_argument("--only", default="", help="mutations of files whose path contains this")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    chosen = [one for one in MUTATIONS if given.only in one.path]
    caught = 0
    with ThreadPoolExecutor(given.at_once) as pool:
        for one, result in zip(chosen, pool.map(lambda one: outcome(one, given.tree), chosen), strict=True):
            print(f"{result}: {one.path}: {' '.join(one.old.split())} -> {' '.join(one.new.split())}", flush=True)
            caught += result == "caught"
    print(f"{caught} of {len(chosen)} caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())

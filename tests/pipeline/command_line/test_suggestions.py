"""What an error says to type, typed after the same command, passes the check that raised it."""

import re
import shlex
from pathlib import Path

import pytest

from pipeline.config.errors import explain
from pipeline.paths import CONF
from pipeline.planning.earlier import prepare
from stages.errors import UserError
from tests.pipeline.checks.test_combinations import REFUSED
from tests.pipeline.config.test_config import WRONG
from tests.pipeline.experiments import command_error, experiment

pytestmark = pytest.mark.slow

MORE = (
    "train.epochs=0", "data.val_fraction=0", "augment.rotation=7", "optimizer.epsilon=0", "schedule.final_share=2",
    "schedule=step schedule.decay_epochs=[0]", "model.network.filters=[0]", "inspect.batch_size=0",
    "data.split_seed=-1",
    "strategy=mirrored strategy.cpu_replicas=65", "strategy.device=cpu", "strategy=mirrored strategy.devices=[x]",
    "name=" + "x" * 300, "name=-", "data=synthetic data.examples=11 data.num_classes=16",
    "data=synthetic data.val_fraction=0.001", "train.epochs=1 schedule.warmup_epochs=1",
    "data=image_folder data.dir=. data.size=x",
    "data=image_folder data.dir=. data.channels=2", "train=fit strategy=mirrored", "train.callbacks=[3]",
    "train=fit strategy=mirrored train.batch_size=63", "tracking=server tracking.uri=http://[::1",
    "train.class_weights=[]",
    "+pipeline.extra=x", "precision.policy=x", "outputs=~nobody_at_all/x", "strategy=mirrored strategy.cpu_replicas=0",
    "tracking=server tracking.uri=http://127.0.0.1:9 dry_run=false", "seed=99999999999", "optimizer.learning_rate=1e39",
    "seed=" + "9" * 400, "train.epochs=9223372036854775808", "train.epochs=${train.epochs}", "train.epochs=${nope}",
)  # fmt: skip

PLACEHOLDER = re.compile(r"<[^>]+>|…")


def refused(overrides: list[str]) -> UserError | None:
    """Returns the error that these overrides end in, as the command would show it."""
    try:
        prepare(experiment(*overrides))
    except UserError as error:
        return error
    except Exception as error:
        return explain(error)
    return None


def kind(error: UserError) -> str:
    """Returns what an error complains of, without the values."""
    return re.sub(r"[\d.]+|=\S*", "", error.problem)[:60]


OTHER_WORDS = (
    "lr=0.1", "learning_rate=0.1", "optimizer.lr=0.1", "+lr=0.1", "epochs=3", "max_epochs=3", "trainer.max_epochs=3",
    "num_epochs=3", "train.max_epochs=3", "batch_size=32", "data.batch_size=32", "gpus=2", "devices=2",
    "trainer.devices=2", "accelerator=gpu", "accelerator=cpu", "ckpt_path=last.ckpt", "resume_from_checkpoint=x",
    "logger=wandb", "logger=false", "callbacks=[x]", "callbacks=default", "early_stopping=5", "patience=5",
    "seed_everything=1", "random_state=1", "data_dir=.", "weight_decay=0.1", "max_grad_norm=1",
    "gradient_clip_val=1.0", "accumulate_grad_batches=2", "fp16=true", "bf16=true", "mixed_precision=true",
    "output_dir=x", "default_root_dir=x", "monitor=val_loss", "val_split=0.2", "scheduler=cosine", "warmup_epochs=2",
    "optim=sgd", "arch=mlp", "image_size=64", "fast_dev_run=true", "overfit_batches=1", "profiler=simple", "jit=true",
    "momentum=0.9", "compile=true", "run_name=x", "label_smoothing=0.1", "n_trials=5",
    "precision=16", "precision=bf16", "precision=16-mixed", "precision=bf16-mixed", "precision=32", "precision=fp64",
    "strategy=ddp", "strategy=auto", "strategy=MirroredStrategy", "strategy=fsdp", "strategy=horovod", "tracking=wandb",
    "tracking=mlflow", "tracking=none", "optimizer=rmsprop", "optimizer=RMSprop", "optimizer=nadam", "optimizer=Lion",
    "optimizer=adagrad", "optimizer=adam_w", "model=resnet50", "model=ResNet50V2", "model=vgg16", "model=DenseNet121",
    "model=convnext_tiny", "model=efficientnet_v2_l", "schedule=cosine_decay", "schedule=ExponentialDecay",
    "schedule=reduce_on_plateau", "schedule=none", "export=tflite", "cluster=kubernetes", "debug=true", "train=keras",
    "tracking.uri=", "name=", "train.epochs=", "train.callbacks=", "optimizer=", "strategy=", "train.monitor=",
    "deterministic=", "model.network.filters=", "tracking.tags=", "data.val_fraction=", "run=",
    "schedule.patience=3", "data.size=8", "strategy.cpu_replicas=2", "train/epochs=3", "train.epochs=null", "seed=null",
    "tracking=server tracking.uri=", "hydra/launcher=joblib", "hydra.run.dir=x", "hydra.verbose=true",
)  # fmt: skip
"""Names and options of other projects, empty values, settings of other options."""


@pytest.mark.parametrize("given", OTHER_WORDS)
def test_words_of_other_projects_are_told_those_of_this_one(given: str) -> None:
    """What is to be typed in their place is known, names what exists, and does not come to the same error."""
    error = command_error(given.split())
    assert error is not None
    fix = error.fix
    assert fix, error
    name = given.partition("=")[0].lstrip("+")
    typed = [word for word in shlex.split(fix) if "=" in word and not word.startswith("HYDRA")]
    assert all(word.partition("=")[0] not in ("lr", "epochs", "gpus", "logger") for word in typed)
    if PLACEHOLDER.search(fix):
        return
    others = [word for word in given.split() if word.partition("=")[0].lstrip("+") != name]
    after = command_error([*others, *typed, "dry_run=true"])
    assert after is None or kind(after) != kind(error), f"{error}\n  then: {after}"


MEANT = {
    "precision=16": "precision=mixed_float16", "tracking=false": "tracking=off", "logger=false": "tracking=off",
    "logger=wandb": "tracking=local", "gpus=2": "strategy=mirrored", "gpus=0": "strategy=one_device",
    "trainer.max_epochs=3": "train.epochs=3", "maxEpochs=3": "train.epochs=3", "ckpt_path=x": "resume=<run>",
    "ckpt_path=null": "resume=never", "scheduler=cosine": "schedule=cosine", "fast_dev_run=true": "debug=fast",
    "strategy=tpu_strategy": "strategy=tpu", "schedule=cosine_annealing": "schedule=cosine", "debug=true": "debug=fast",
    "sweep=grid_search": "sweep=grid", "data=MNIST": "data=mnist", "export=false": "pipeline.export=null",
    "cluster=slurm_cluster": "cluster=slurm", "train=custom_loop": "train=loop", "early_stopping=true":
    "train.early_stopping_patience=…", "model=vit_b_16": "model=<option>", "export=tensorrt": "export=<option>",
    "data=path/to/images": "data=<option>", "optimizer.rho=0.9": "python -m pipeline --cfg job",
    "hydra/launcher=joblib": "sweep.n_jobs=2", "hydra/sweeper=optuna": "sweep=tpe",
    "hydra.run.dir=x": "outputs=<folder>",
    "optimizer=adamax": "optimizer=custom optimizer._target_=keras.optimizers.Adamax",
}  # fmt: skip


@pytest.mark.parametrize("given", MEANT)
def test_a_word_is_told_what_it_means_here_and_not_any_option(given: str) -> None:
    error = command_error([given])
    assert error is not None
    assert error.fix == MEANT[given]


def test_nothing_is_listed_twice() -> None:
    """YAML would keep the last alone."""
    lines = (CONF.parent / "pipeline" / "config" / "other_words.yaml").read_text().splitlines()
    meanings = [line.rpartition(": ")[0] for line in lines if re.match(r"[^ #]", line)]
    assert len({*meanings}) == len(meanings)


SPELLINGS = (
    "train.epochs = 3", "train.epochs:3", "train.epochs: 3", "train.epochs==3", "train.epochs 3", "--train.epochs 3",
    "--train.epochs=3", "--train.batch-size=3", "train.epochs= 3",
)  # fmt: skip


@pytest.mark.parametrize("given", SPELLINGS)
def test_other_spellings_are_refused_with_the_one_that_works(given: str) -> None:
    for words in ([given], given.split()):
        error = command_error(words)
        assert error is None or re.search(r"Expected .*key=value.*Try: [\w.]+=", str(error)), error
        assert (error is None) == (words == ["train.epochs= 3"])


STANDARD = {
    "strategy": "strategy", "load": "dataset", "normalize": "dataset", "augment": "dataset", "inspect": "inspection",
    "model": "model", "train": "trained", "evaluate": "evaluation", "export": "exported",
}  # fmt: skip
ORDERS = [
    *([stage for stage in STANDARD if stage != left_out] for left_out in STANDARD),
    ["strategy", "load", "normalize", "model", "augment", "train"], ["load", "strategy", "model", "train"],
    ["strategy", "load", "train", "model"], ["model", "load", "strategy"], ["load"], ["train"], ["load", "inspect"],
]  # fmt: skip


@pytest.mark.parametrize("stages", ORDERS, ids=" ".join)
def test_an_own_pipeline_works_or_is_told_what_it_lacks(stages: list[str], tmp_path: Path) -> None:
    """As a file of one's own: groups of stages that it leaves out are there, and nothing reads them."""
    (tmp_path / "pipeline").mkdir()
    lines = "".join(f"{stage}: {STANDARD[stage]}\n" for stage in stages)
    (tmp_path / "pipeline" / "mine.yaml").write_text(lines)
    words = ["--config-dir", str(tmp_path), "pipeline=mine", "dry_run=true"]
    error = command_error(words)
    made: set[str] = set()
    lacks = False
    for stage in stages:
        takes = {"train": {"model", "dataset", "strategy"}, "model": {"dataset", "strategy"}, "inspect": {"dataset"},
                 "evaluate": {"trained", "dataset", "strategy"}, "export": {"trained", "dataset", "strategy"},
                 "normalize": {"dataset"}, "augment": {"dataset"}}.get(stage, set())  # fmt: skip
        lacks = lacks or not takes <= made
        made.add(STANDARD[stage])
    assert (error is not None) == lacks, error
    if error:
        assert "which no earlier stage makes" in str(error)
        assert error.fix == "pipeline=standard"
        assert command_error([*words, error.fix]) is None


CASES = [case for case in (*REFUSED, *WRONG, *MORE) if not case.startswith(("-", "train.epochs=1 -m"))]


@pytest.mark.parametrize("given", CASES, ids=lambda given: given[:60])
def test_what_it_says_to_type_passes_its_check(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPU_NAME", raising=False)
    overrides = given.split()
    dry = [] if "dry_run=false" in given else ["dry_run=true"]
    error = refused([*overrides, *dry])
    if error is None or not error.fix or PLACEHOLDER.search(error.fix) or error.fix.startswith("python -m"):
        return
    assert ", or " not in error.fix, "prose"
    typed = shlex.split(error.fix)
    assert all("=" in override or override.startswith("~") for override in typed), error.fix
    if re.search("unknown setting|is new", error.problem):  # the word that is wrong is replaced
        overrides = overrides[:-1]
    after = refused([*overrides, *dry, *typed])
    assert after is None or kind(after) != kind(error), f"{error}\n  then: {after}"


def test_a_fix_is_one_command_line_everywhere() -> None:
    """Whatever stands as `fix` in the source is no choice in prose."""
    import ast

    for folder in ("pipeline", "stages/settings"):
        for path in Path(CONF.parent / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UserError" and len(node.args) == 3:
                    text = ast.unparse(node.args[2])
                    assert ", or " not in text, f"{path}:{node.lineno}: {text}"

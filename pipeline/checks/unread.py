"""Settings that nothing reads beside certain others, as rows of a table."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.checks.refusal import Condition, all_of, has
from pipeline.config.cluster_settings import JoinedCluster
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import MLFLOW_RUN
from stages.data import tfds_folder
from stages.data.class_folders import split_folders
from stages.errors import UserError
from stages.settings.data import ImageFolderSettings, ImagesSettings, SyntheticSettings, TfdsSettings
from stages.settings.images import AugmentSettings
from stages.settings.model import MlpSettings, ModelSettings
from stages.settings.optimizer import SgdSettings
from stages.settings.results import ExportSettings
from stages.settings.strategy import DevicesSettings
from stages.settings.train import FitSettings, TrainSettings


@dataclass(frozen=True)
class Unused:
    """Settings that nothing reads in some experiments.

    names: their dotted names, as a regular expression.
    when: the experiments in which nothing reads them.
    reason: why, with values in braces; see `refusal.values`.
    fix: a setting with which they have an effect, with values too.
    """

    names: str
    when: Condition
    reason: str
    fix: str


def _of_schedule(setting: str, *readers: str) -> Unused:
    """Returns the row of a setting that only the schedules in `readers` read."""
    is_unread = has("train", TrainSettings, lambda train: train.schedule.name not in readers)
    reason = f"schedule={{schedule}} does not read it, but {', '.join(readers)}"
    return Unused(rf"schedule\.{setting}", is_unread, reason, f"schedule={readers[0]}")


def _in_epochs(setting: str, needed: Callable[[TrainSettings], float]) -> Unused:
    """Returns the row of a setting that takes effect after so many epochs, where training has ended by then."""
    is_beyond = has("train", TrainSettings, lambda train: needed(train) >= train.longest_phase)
    return Unused(setting, is_beyond, "train.epochs={epochs} end before", "train.epochs={enough_epochs}")


def _is_nesterov_without_momentum(optimizer: object) -> bool:
    return isinstance(optimizer, SgdSettings) and optimizer.nesterov and not optimizer.momentum


def _has_no_workers(experiment: Experiment) -> bool:
    return not experiment.members


def _has_split(split: str) -> Condition:
    """Returns the condition that the data set brings `split` with it, which is then not cut from others."""

    def applies(settings: ImageFolderSettings | TfdsSettings) -> bool:
        try:
            if isinstance(settings, ImageFolderSettings):
                return split in split_folders(settings.folder)[0]
            place = tfds_folder.find(settings)
            return place is not None and {"val": "validation"}.get(split, split) in tfds_folder.read(place).splits
        except (UserError, OSError, LookupError, TypeError, ValueError):  # refused elsewhere
            return False

    return has("load", (ImageFolderSettings, TfdsSettings), applies)


def _quantizes_nothing(name: str) -> Condition:
    """Returns the condition that the format `name` of an export is a LiteRT file without whole numbers."""
    return has("export", ExportSettings, lambda of: getattr(of.formats.get(name), "weights", "int8") != "int8")


UNUSED: tuple[Unused, ...] = (
    _of_schedule("warmup_epochs", "constant", "cosine", "step", "custom"),
    _of_schedule("final_share", "cosine", "plateau"),
    _of_schedule("decay_epochs", "step"),
    _of_schedule("decay_factor", "step", "plateau"),
    _of_schedule("patience", "plateau"),
    _in_epochs(r"schedule\.decay_epochs", lambda train: max(train.schedule.decay_epochs, default=0)),
    _in_epochs(r"schedule\.patience", lambda train: train.schedule.patience),
    _in_epochs(r"train\.early_stopping_patience", lambda train: train.early_stopping_patience),
    Unused(
        r"tracking\.(_target_|options.*|note|tags.*|system_metrics|untracked)",
        lambda experiment: experiment.tracking.kind == "off",
        "tracking=off records nothing",
        "tracking=local",
    ),
    Unused(
        r"tracking\.options.*",
        lambda experiment: experiment.tracking._target_ == MLFLOW_RUN,
        "MLflow's runs read none, but a custom tracking._target_",
        "tracking._target_=<the import path of a class>",
    ),
    Unused(
        r"tracking\.uri",
        lambda experiment: experiment.tracking.kind != "server",
        "only tracking=server has an address",
        "tracking=server",
    ),
    Unused(
        r"cluster\.restarts",
        all_of(_has_no_workers, lambda experiment: not experiment.cluster.places_jobs),
        "strategy={strategy} has no workers",
        "strategy=multi_worker",
    ),
    Unused(
        r"cluster\.(timeout_seconds|port)",
        all_of(_has_no_workers, lambda experiment: isinstance(experiment.cluster, JoinedCluster)),
        "strategy={strategy} has no workers, which would meet",
        "strategy=multi_worker",
    ),
    Unused(
        r"strategy\.(workers|servers)",
        lambda experiment: not experiment.cluster.counts_members,
        "cluster={cluster} determines how many there are",
        "cluster=local",
    ),
    Unused(
        r"strategy\.cpu_replicas",
        has("strategy", DevicesSettings, lambda of: of.devices),
        "strategy.devices names the replicas",
        "strategy.devices=[]",
    ),
    Unused(
        r"optimizer\.nesterov",
        has("train", TrainSettings, lambda train: _is_nesterov_without_momentum(train.optimizer)),
        "optimizer.momentum=0",
        "optimizer.momentum=0.9",
    ),
    Unused(
        r"train\.fine_tune_(layers|rate)",
        has("train", TrainSettings, lambda train: not train.fine_tune_epochs),
        "train.fine_tune_epochs=0",
        "train.fine_tune_epochs=5",
    ),
    Unused(
        r"augment\.magnitude",
        has("augment", AugmentSettings, lambda augment: not augment.rand_augment),
        "augment.rand_augment=0",
        "augment.rand_augment=2",
    ),
    Unused(
        r"export\.promote_if",
        has("export", ExportSettings, lambda export: export.alias is None),
        "export.alias names none",
        "export.alias=champion",
    ),
    Unused(
        r"data\.resize",
        has("load", ImagesSettings, lambda data: data.size is None),
        "data.size=null keeps images as they are",
        "data.size=160",
    ),
    Unused(
        r"data\.val_fraction",
        has("load", TfdsSettings, lambda data: data.val_split is not None),
        "data.val_split names the examples",
        "data.val_split=null",
    ),
    Unused(
        r"data\.test_fraction",
        has("load", TfdsSettings, lambda data: data.test_split is not None),
        "data.test_split names the examples",
        "data.test_split=null",
    ),
    Unused(
        r"augment\.where",
        has("augment", AugmentSettings, lambda augment: not augment.changes),
        "nothing in augment changes single images",
        "augment=flip",
    ),
    Unused(
        r"augment\.without_color",
        has("augment", AugmentSettings, lambda augment: not (augment.saturation or augment.hue)),
        "neither augment.saturation nor augment.hue is set",
        "augment.saturation=0.2",
    ),
    Unused(
        r"train\.(cache_features|checkpoint\w+)",
        has("train", FitSettings),
        "train=fit saves each epoch, and caches no features",
        "train=loop",
    ),
    Unused(
        r"train\.cache_features",
        has("model", ModelSettings, lambda model: not model.frozen),
        "model.frozen=false, so that features change with every step",
        "model=mobilenet_v2 model.frozen=true",
    ),
    Unused(
        r"train\.cache_features",
        has("augment", AugmentSettings, lambda augment: augment.changes or augment.mixes),
        "augment={augment} changes the images in every epoch",
        "augment=none",
    ),
    Unused(
        r"model\.network\.dropout",
        has("model", ModelSettings, lambda model: isinstance(model.network, MlpSettings) and not model.network.hidden),
        "model.network.hidden=[], and it follows each hidden layer",
        "model.network.hidden=[256,256]",
    ),
    Unused(
        r"export\.reload_seconds",
        has("export", ExportSettings, lambda export: export.reload == "here"),
        "export.reload=here waits for no other process",
        "export.reload=process",
    ),
    *(
        Unused(
            rf"export\.formats\.{name}\.representative_examples",
            _quantizes_nothing(name),
            "they are for int8",
            f"export.formats.{name}.weights=int8",
        )
        for name in ("litert_float32", "litert_float16", "litert_int8")
    ),
    Unused(
        r"data\.test_fraction",
        has("load", SyntheticSettings, bool),
        "data.test_examples says how many",
        "data=digits",
    ),
    Unused(
        r"data\.on_error",
        has("load", SyntheticSettings, bool),
        "generated images can all be used",
        "data=image_folder data.dir=<folder>",
    ),
    *(
        Unused(
            rf"data\.{split}_fraction",
            _has_split(split),
            "the data set has this split already",
            "data.dir=<a data set without it>",
        )
        for split in ("val", "test")
    ),
)

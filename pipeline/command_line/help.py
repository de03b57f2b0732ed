"""The text of `--help`, with the options in the folders of the configuration."""

import textwrap

from pipeline.config.names import Options

_HEAD = """\
Runs machine-learning experiments in TensorFlow and Keras as a pipeline of stages, tracked in MLflow.

  python -m pipeline                                     real digits, one device, half a minute
  python -m pipeline strategy=mirrored precision=mixed   the same on all devices, in mixed precision
  python -m pipeline -m strategy=one_device,mirrored precision=float32,mixed   a sweep of four jobs
  python -m pipeline -m debug=fast strategy=…            two steps of everything, before the real sweep
  python -m pipeline.compare                             what the last sweep showed
  python -m pipeline.predict RUN files                   classes and scores of image files; .serve RUN: over HTTP
  python -m pipeline.sync                                sends what a store has not got, or has lost
  python -m pipeline.clean                               frees disk space: old checkpoints, unused caches, leftovers

The same command resumes a run, or a sweep, that was interrupted. resume=never begins a new one; resume=<run> resumes
that one, with its settings; fork=<run> starts a new run with its settings and those that you give, such as
fork=4d9eb298 train.epochs=60: from the best weights, which it reported, or with fork_weights=last from the last ones
and their optimizer. from=evaluate run=4d9eb298 evaluates and exports that run again, without training, also on other
data, in another format or on other devices. A run is named by its folder or the beginning of its id. Code, addresses
and places that its folder asks for, and no file of the configuration names, need trust=true.

Choose an option of a group by group=option (the first one is the default):

"""

_TAIL = """
Set a value by its dotted name: train.epochs=5 train.batch_size=128 optimizer.learning_rate=0.003 seed=7
  --cfg job          shows every value; --package train: those of one group; --resolve: with references resolved
  dry_run=true       shows the plan
  --config-dir DIR   adds custom options (in a package: 'hydra.searchpath=[pkg://my_package.conf]')
  -m                 sweeps over every value given as a,b,c, range(1,4) or glob(c*); max_jobs limits how many jobs
  sweep=<option>     sweeps over what a file says; with any sweep sweep.n_jobs=2 runs two jobs at a time
  --info             shows where the configuration comes from
  --version          shows the versions of this project and of Hydra

HYDRA_FULL_ERROR=1 in the environment shows the traceback of an error. tf-pipeline is the same command by another name;
eval "$(tf-pipeline --shell-completion install=bash)" lets bash complete its groups, options and settings.
"""
_WIDTH = 118


def help_text(options: Options) -> str:
    """Returns the text of `--help`, with every group and option."""
    column = max(map(len, options.groups), default=0)
    rows = []
    indent = " " * (column + 4)
    for group, names in options.groups.items():
        listed = ", ".join(names if options.defaults.get(group) is not None else ("(none)", *names))
        lines = [options.about[group]] if group in options.about else []
        lines += textwrap.wrap(listed, _WIDTH - len(indent))
        rows.append(f"  {group:{column}}  " + f"\n{indent}".join(lines))
    return _HEAD + "\n".join(rows) + "\n" + _TAIL

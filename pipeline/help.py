"""What `--help` prints. Hydra's own loads every file of `conf/` first, and takes 1.3 s."""

HELP = """\
Runs machine-learning experiments in TensorFlow and Keras as a pipeline of stages, tracked in MLflow.

  python -m pipeline                                     real digits, one device, half a minute
  python -m pipeline strategy=mirrored precision=mixed   the same on all devices, in mixed precision
  python -m pipeline -m strategy=one_device,mirrored precision=float32,mixed   a sweep of four jobs
  python -m pipeline.compare                             what the last sweep showed
  python -m pipeline.sync                                sends what was recorded while a store did not answer

The same command goes on with a run, or a sweep, that was interrupted. resume=never begins a new one;
resume=<run> goes on with that one, with its settings; fork=<run> starts a new run from its weights, with its settings
and those that you give, such as fork=4d9eb298 train.epochs=60. A run is named by its folder or the beginning of its id.

Choose an option of a group by group=option:

  data       digits, mnist, fashion_mnist, cifar10, tf_flowers, tfds, image_folder, synthetic
  normalize  auto, rescale, standardize, imagenet, none
  augment    none, flip, flip_rotate, strong
  inspect    default
  strategy   one_device, mirrored, multi_worker, parameter_server, central_storage, model_parallel, tpu, default
  cluster    local, tf_config
  precision  float32, mixed, mixed_float16, mixed_bfloat16, bfloat16, float16, float64
  model      mlp, cnn, cnn_photo, resnet20, mobilenet_v2, efficientnet_v2_b0, efficientnet_v2_b1, efficientnet_v2_b2,
             efficientnet_v2_b3, efficientnet_v2_s, efficientnet_v2_m, application
  optimizer  adam, adamw, sgd
  schedule   constant, cosine, step, plateau
  train      loop, fit
  evaluate   classification
  export     saved_model
  tracking   local, server, off
  pipeline   standard
  experiment mnist_mlp, mnist_cnn, mnist_mirrored, mnist_multi_worker, mnist_parameter_server,
             flowers_cnn, flowers_transfer, cats_dogs_transfer, ai_or_not_efficientnet, cifar10_resnet20

Set a value by its dotted name: train.epochs=5 train.batch_size=128 optimizer.learning_rate=0.003 seed=7
  --cfg job          shows every value
  dry_run=true       shows the plan
  --config-dir DIR   adds options of your own
  -m                 sweeps over every value given as a,b,c
"""

# Usage: `docker build --tag pipeline .`, then `docker run pipeline --help`, or a verb: `docker run pipeline runs`.
# GPUs: --build-arg EXTRAS=gpu. TensorFlow's packages include CUDA, so the host only needs a driver.
# BASE: any image with Python 3.11 to 3.13 and pip.
ARG BASE=python:3.11-slim
FROM ${BASE}

ARG EXTRAS=none
RUN useradd --create-home --uid 1000 trainer
WORKDIR /home/trainer

COPY . source
RUN extras="${EXTRAS#none}" && pip install --no-cache-dir --constraint source/constraints.txt "./source${extras:+[$extras]}" \
  && mkdir /outputs && chown trainer /outputs && rm -r source

# Downloaded data sets and pretrained weights, and matplotlib's font cache, are stored in the user's home.
USER 1000
VOLUME /outputs

ENTRYPOINT ["python", "-m", "pipeline", "outputs=/outputs"]
CMD ["--help"]

# sluice in a container. The build takes packages of the distribution alone, and what it makes is the .deb of
# scripts/package.sh, which the second stage installs; the image has no compiler.
#
#   docker build -t sluice .
#   docker run --rm -v MODELS:/models sluice run /models/NAME -p "Once upon a time"
#   docker run --rm -v MODELS:/models -p 8000:8000 sluice serve /models/NAME --host 0.0.0.0 --api-key KEY
#
# For NVIDIA GPUs (`docker run --gpus all`; no GPU has run sluice yet, docs/gpu/STATUS.md):
#
#   docker build -t sluice-cuda --build-arg CUDA=ON --build-arg BUILD=nvidia/cuda:12.6.3-devel-ubuntu24.04 \
#     --build-arg RUN=nvidia/cuda:12.6.3-runtime-ubuntu24.04 .
#
# io_uring is not among what containers may call by default: sluice then reads by threads, a little slower. Both need
# an option of `docker run`: --security-opt seccomp=unconfined for io_uring, --ulimit memlock=-1 for locked memory.
ARG BUILD=debian:12
ARG RUN=debian:12-slim

FROM ${BUILD} AS build
ARG CUDA=OFF
WORKDIR /sluice
# What building needs comes first: it stays in Docker's cache while only sources change.
COPY scripts/setup.sh scripts/
RUN scripts/setup.sh
COPY . .
RUN scripts/package.sh -o /packages "-DSLUICE_CUDA=${CUDA}"

FROM ${RUN}
COPY --from=build /packages/sluice_*.deb /tmp/
# It needs no other package: nothing is fetched.
RUN apt-get install -y --no-install-recommends /tmp/sluice_*.deb \
    && rm /tmp/sluice_*.deb \
    && useradd --uid 10001 --create-home sluice
USER 10001
WORKDIR /home/sluice
EXPOSE 8000
ENTRYPOINT ["sluice"]
CMD ["--help"]

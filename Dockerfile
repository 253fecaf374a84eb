# The program in an image, from its Debian package (docs/first-steps.md, "Package and container"):
#   docker build -t shardloom .
#   docker run --rm -v "$PWD:/work" shardloom --help
FROM debian:12-slim AS build
COPY cmake/install_packages.sh /source/cmake/
RUN bash /source/cmake/install_packages.sh run
COPY . /source
WORKDIR /source
RUN cmake --preset package -Wno-dev && cmake --build --preset package
RUN cpack -G DEB --config build/package/CPackConfig.cmake -B /package

FROM debian:12-slim
RUN --mount=type=bind,from=build,source=/package,target=/package \
    apt-get update && \
    apt-get install -y --no-install-recommends /package/shardloom_*.deb openmpi-bin && \
    rm -rf /var/lib/apt/lists/*
# mpirun: processes of a container are root's by default.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
WORKDIR /work
ENTRYPOINT ["shardloom"]

# An image with the locked packages:
#   docker build -t adapter-bert .
#   docker build -t adapter-bert:cuda --build-arg KIND=cuda .
# docs/serve.md tells more.
ARG PYTHON=3.13
FROM python:${PYTHON}-slim-bookworm

# A lock of requirements/: tf221 or tf215 (with PYTHON=3.11), cpu or cuda.
ARG STACK=tf221
ARG KIND=cpu

ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

WORKDIR /app
# Before the program, so that a change of that installs nothing again.
COPY requirements/${STACK}-${KIND}.txt requirements/
RUN python -m pip install --no-cache-dir --disable-pip-version-check \
    --require-hashes -r "requirements/${STACK}-${KIND}.txt"
COPY . .
RUN python -m pip install --no-cache-dir --disable-pip-version-check \
    --no-deps --no-build-isolation .

# It owns no file of the program.
RUN useradd --create-home --uid 1000 user
USER 1000

ENTRYPOINT ["adapter-bert"]
CMD ["--help"]

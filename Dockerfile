# An image with everything installed. Data sets and runs stay outside: mount their folders, as below.
#
#     docker build --tag graf_ccsr .                                 # for NVIDIA GPUs, and for CPUs too
#     docker build --tag graf_ccsr --build-arg TORCH_INDEX=URL .     # for CPUs alone: URL and sizes are in README.md
#     docker run --rm --interactive --tty --user "$(id -u):$(id -g)" --shm-size 2g --gpus all \
#         --volume "$PWD/data:/graf/data" --volume "$PWD/results:/graf/results" graf_ccsr train.py --use_amp
#     docker run --rm --publish 127.0.0.1:8080:8080 graf_ccsr view.py --host 0.0.0.0
#
# Leave out --gpus on a machine without a GPU. Make data/ and results/ first, or Docker makes them as root's.
FROM python:3.12-slim

# what tools/render_dataset.py draws meshes with, and the C and C++ compilers of training.fused_field and training.compile
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgl1 libegl1 libgl1-mesa-dri g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /graf
ARG TORCH_INDEX=""
COPY requirements.txt .
RUN if [ -n "$TORCH_INDEX" ]; then pip install --no-cache-dir --index-url "$TORCH_INDEX" torch torchvision; fi \
    && pip install --no-cache-dir --requirement requirements.txt
COPY . .
RUN pip install --no-cache-dir --editable '.[viewer]' && mkdir -p data results && chmod 777 data results

# whoever --user says has a place for caches of matplotlib and PyTorch
ENV HOME=/tmp PYTHONUNBUFFERED=1
ENTRYPOINT ["python"]
CMD ["train.py", "--help"]

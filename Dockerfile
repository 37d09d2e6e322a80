# The image of rayjob.yaml: the image of cluster.yaml, with the libraries and the code. See docs/how-to/cluster.md.
FROM rayproject/ray:2.60.0-py311-cu128

# Created before WORKDIR, which would create it as root: the installation and the runs write here.
USER ray
RUN mkdir -p /home/ray/multicse
WORKDIR /home/ray/multicse
COPY --chown=ray:users pyproject.toml constraints.txt README.md LICENSE ./
COPY --chown=ray:users multicse multicse
RUN ln -s multicse/pipelines multicse/reproduction .
# Keeps reading processes on nodes with fewer CPUs than processes (docs/how-to/cluster.md).
ENV RAY_num_workers_soft_limit=64
# Source of the torch wheels. They contain CUDA's libraries and need a driver for this CUDA version (13.0: 580 or
# later). Other drivers: cu126; without a GPU: cpu.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cu130
RUN pip install --no-cache-dir -e ".[cluster,s3]" -c constraints.txt --extra-index-url ${TORCH_INDEX}

"""Shards and streams. All other packages import this one, so it sets the environment of torch."""

import os

# Torch's threads wait for each other some 60 times per layer. GNU's OpenMP lets them spin for milliseconds, which costs two
# thirds of the speed if cores are shared; threads that sleep immediately cost a fifth of it if they are not. A thousand
# iterations, some microseconds, avoid both (docs/dev/performance.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

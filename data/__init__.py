"""Shards, streams and what else feeds training. All other rooms import from here, so what torch has to find is said here."""

import os

# Torch's threads wait for each other some 60 times a layer. GNU's OpenMP lets them spin for milliseconds meanwhile, which
# takes two thirds of the speed where cores are shared; threads that sleep at once cost a fifth of it where they are not. A
# thousand turns, some microseconds, cost neither (docs/results/performance.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

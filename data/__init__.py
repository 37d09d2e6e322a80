"""Shards, streams and what else feeds training. All other rooms import from here, so what torch has to find is said here."""

import os

# Torch's threads wait for each other some 60 times a layer. By default they spin while they wait, which costs nothing on an
# idle machine, and on one whose cores are shared all of the time that the others need to get there (docs/log.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

"""The Hexveil service: vehicle events in, differentially private releases out."""

import os

# A window's matrices have tens to hundreds of rows: OpenBLAS's threads wait for each other there longer than they
# compute.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

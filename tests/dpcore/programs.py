"""Small allocation programs, of which the exact losses are computed from the matrix alone."""

import numpy as np
from hypothesis import strategies as st

from dpcore.allocation import Sensitivities


def from_dense(matrix: np.ndarray, weight: np.ndarray | None = None) -> Sensitivities:
    row, user = np.nonzero(matrix)
    weight = np.ones(len(matrix)) if weight is None else weight
    return Sensitivities(row, user, matrix[row, user].astype(np.int64), weight, matrix.shape[1])


matrices = (
    st.integers(1, 6)
    .flatmap(
        lambda rows: st.integers(1, 6).flatmap(
            lambda users: st.lists(
                st.lists(st.sampled_from([0, 0, 1, 2, 7, 800, 10**6]), min_size=users, max_size=users),
                min_size=rows,
                max_size=rows,
            )
        )
    )
    .map(lambda rows: np.array(rows, dtype=np.int64))
)
"""Sensitivities, rows × users."""

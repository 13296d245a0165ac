"""Logistic models fitted to equally weighted groups of samples, and calibration of probabilities: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.search.confidence import Logistic

Array = NDArray[np.float64]
Features = Mapping[str, Array]


def fit(groups: Sequence[tuple[Features, Array]], names: Sequence[str], *, ridge: float = 5.0) -> Logistic:
    """Return the logistic model of greatest likelihood, each (features, outcomes) group counting alike.

    Newton's method on standardised features with a small ridge.
    """
    features = np.vstack([np.column_stack([group[name] for name in names]) for group, _ in groups])
    outcomes = np.concatenate([outcome for _, outcome in groups])
    weights = np.concatenate([np.full(len(outcome), 1 / len(outcome)) for _, outcome in groups])
    weights /= weights.mean()
    mean, spread = features.mean(axis=0), features.std(axis=0)
    design = np.column_stack([np.ones(len(features)), (features - mean) / spread])
    penalty = np.array([0.0] + [ridge] * features.shape[1])
    result = np.zeros(design.shape[1])
    for _ in range(100):
        expected = 1 / (1 + np.exp(-np.clip(design @ result, -30, 30)))
        slope = design.T @ (weights * (outcomes - expected)) - penalty * result
        curvature = (design * (weights * expected * (1 - expected))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, slope)
        result += step * min(1.0, 2.0 / np.abs(step).max())
        if np.abs(step).max() < 1e-9:
            break
    coefficients = result[1:] / spread
    return Logistic(float(result[0] - coefficients @ mean), dict(zip(names, coefficients.tolist(), strict=True)))


def probabilities(model: Logistic, features: Features) -> Array:
    """Return the probabilities of many samples by a model."""
    linear = model.intercept + sum(value * features[name] for name, value in model.coefficients.items())
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(linear, -500.0, 500.0))))


def brier_skill(outcomes: Array, probabilities: Array, reference: Array) -> float:
    """Return 1 - Brier score / Brier score of the reference: above 0 where the probabilities are better."""
    return 1 - float(np.mean((probabilities - outcomes) ** 2) / np.mean((reference - outcomes) ** 2))


def auroc(outcomes: Array, values: Array) -> float:
    """Return the probability that a positive has the larger value, ties counting half."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positives = outcomes.sum()
    return float(
        (ranks[outcomes > 0].sum() - positives * (positives + 1) / 2) / (positives * (len(outcomes) - positives))
    )


def separation(inside: Array, outside: Array) -> float:
    """Return the AUROC of two samples: how often a value of the first is the larger one."""
    return auroc(np.concatenate([np.ones(len(inside)), np.zeros(len(outside))]), np.concatenate([inside, outside]))


def calibration_error(outcomes: Array, probabilities: Array, *, bins: int = 10) -> float:
    """Return the expected calibration error over bins of equal width."""
    place = np.minimum((probabilities * bins).astype(int), bins - 1)
    parts = [place == number for number in range(bins)]
    return float(sum(abs(outcomes[p].mean() - probabilities[p].mean()) * p.mean() for p in parts if p.any()))


def threshold(samples: Sequence[Array], share: float) -> float:
    """Return the largest threshold, to three places, below which no sample has more than that share."""
    steps = np.arange(1_000) / 1_000
    return float(max(step for step in steps if max(np.mean(one < step) for one in samples) <= share))

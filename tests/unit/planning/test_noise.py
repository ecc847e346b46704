import numpy as np
import pytest

from brim.errors import InputError
from brim.planning.noise import GradientMoments, gradient_moments, noise_scale


def test_linear_regression_has_the_noise_scale_that_theory_says():
    # x ~ N(0, I_d), noise σ, error e: (d + 1) + d·σ²/|e|² = 341.
    random, num_inputs, sigma, length = np.random.default_rng(0), 20, 2.0, 0.5
    error = np.full(num_inputs, length / np.sqrt(num_inputs))
    sizes = [24, 8, 16, 16]
    steps = []
    for _ in range(4000):
        gradients = []
        for size in sizes:
            x = random.standard_normal((size, num_inputs))
            gradients.append(x.T @ (x @ error + sigma * random.standard_normal(size)) / size)
        mean = np.average(gradients, axis=0, weights=sizes)
        steps.append(gradient_moments(sizes, [gradient @ gradient for gradient in gradients], mean @ mean))
    assert noise_scale(steps) == pytest.approx(341, rel=0.05)
    assert np.mean([step.signal for step in steps]) == pytest.approx(length**2, rel=0.05)


def test_too_little_is_refused():
    with pytest.raises(InputError, match="at least two microbatches"):
        gradient_moments([8], [1.0], 1.0)
    with pytest.raises(InputError, match="no gradient above the noise"):
        noise_scale([GradientMoments(noise=1.0, signal=-0.5)])

"""The circuit breaker alone: a state machine that is told the time."""

from __future__ import annotations

from oni_ray.annotation.circuit_breaker import BreakerState, CircuitBreaker


def test_the_breaker_opens_probes_and_closes() -> None:
    it = CircuitBreaker(threshold=2, first_delay_s=1.0, max_delay_s=3.0, refused_delay_s=50.0, jitter=lambda: 1.0)
    assert (it.state, it.probe()) == (BreakerState.CLOSED, False)
    it.failed(100.0)
    assert (it.state, it.retry_at, it.failing_since) == (BreakerState.CLOSED, 101.0, 100.0)
    it.failed(101.0)
    assert (it.state, it.retry_at) == (BreakerState.OPEN, 103.0)
    assert it.probe()
    assert it.state is BreakerState.HALF_OPEN
    it.failed(103.0)
    assert (it.state, it.retry_at) == (BreakerState.OPEN, 106.0)  # 4 s, but at most 3
    it.failed(106.0, retry_after_s=20.0)
    assert it.retry_at == 126.0
    it.refused(126.0)
    assert (it.state, it.retry_at) == (BreakerState.REFUSED, 176.0)
    assert it.probe()
    assert it.state is BreakerState.REFUSED
    it.succeeded()
    assert (it.state, it.failing_since, it.probe()) == (BreakerState.CLOSED, None, False)
    it.failed(200.0)
    assert it.retry_at == 201.0  # starts anew


def test_jitter_never_goes_below_half_or_below_retry_after() -> None:
    it = CircuitBreaker(first_delay_s=1.0, jitter=lambda: 0.0)
    it.failed(0.0)
    assert it.retry_at == 0.5
    it.failed(0.0, retry_after_s=7.0)
    assert it.retry_at == 7.0

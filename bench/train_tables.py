"""The training benchmark's tables, in Markdown."""

from __future__ import annotations

from statistics import median
from typing import Any

from train_models import Workload

Results = dict[str, list[dict[str, Any]]]


def overhead(results: Results, words: str) -> None:
    """What each loop adds to the raw one, paired round by round.

    The CPU time and the fastest rounds are the steadier numbers where others use the machine as well.
    """
    print(
        f"\n| {words} | us per step | min-max | over raw, us | min-max |"
        " CPU over raw, us | fastest over fastest, us | / raw |"
    )
    print("|---|---|---|---|---|---|---|---|")
    base = median(result["step"] for result in results["raw"])
    for name, taken in _sorted(results):
        steps = [1e6 * result["step"] for result in taken]
        more, busy = _over(taken, results["raw"], "step"), _over(taken, results["raw"], "cpu")
        least = min(steps) - 1e6 * min(result["step"] for result in results["raw"])
        print(
            f"| {name} | {median(steps):.1f} | {_span(steps)} | {median(more):+.1f} | {_span(more)} |"
            f" {median(busy):+.1f} | {least:+.1f} | {median(steps) / (1e6 * base):.2f} |"
        )


def _over(taken: list[dict[str, Any]], raw: list[dict[str, Any]], key: str) -> list[float]:
    return [1e6 * (one[key] - other[key]) for one, other in zip(taken, raw, strict=False)]


def speed(results: Results, work: Workload, top: dict[str, Any], cold: bool) -> None:
    """Time per step at steady state, how much of the GPU that is, and the time of the whole run."""
    base = median(result["step"] for result in results.get("by hand", next(iter(results.values()))))
    of_peak = f", peak {top['peak'] / 1e12:.0f} TFLOP/s on {top['gpu']}" if "peak" in top else ""
    print(
        f"\n| {work.name}{of_peak} | ms per step | min-max | / by hand | {work.unit}/s | MFU | whole run, s |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, taken in _sorted(results):
        steps = [1e3 * result["step"] for result in taken]
        seconds = median(steps) / 1e3
        rate = work.batch * work.units / seconds
        used = f"{taken[0]['flops'] / seconds / top['peak']:.1%}" if "peak" in top else "-"
        whole = f"{median(result['total'] for result in taken):.1f}" if cold else "-"
        print(
            f"| {name} | {median(steps):.3f} | {_span(steps, 3)} | {seconds / base:.3f} |"
            f" {rate:,.0f} | {used} | {whole} |"
        )


def _sorted(results: Results) -> list[tuple[str, list[dict[str, Any]]]]:
    return sorted(results.items(), key=lambda item: median(result["step"] for result in item[1]))


def _span(values: list[float], digits: int = 1) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"

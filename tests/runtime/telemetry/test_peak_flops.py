"""The peak of a card by the names that drivers and torch give it."""

from __future__ import annotations

import pytest

from allranks.runtime.telemetry.peak_flops import peak_flops


@pytest.mark.parametrize(
    ("name", "bf16"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA A30", 165),
        ("NVIDIA A40", 149.7),
        ("NVIDIA RTX A6000", 154.8),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 3090", 71.2),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 5090", 209.5),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("AMD Instinct MI100", 92.3),
        ("AMD Instinct MI210", 181),
        ("AMD Instinct MI250X / MI250", 191.5),
        ("AMD Instinct MI300A", 980.6),
        ("AMD Instinct MI300X", 1307.4),
        ("AMD Instinct MI325X", 1307.4),
        ("Tesla V100-SXM2-32GB", None),
        ("Tesla T4", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("GRID A100D-8C", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("Quadro RTX 6000", None),
        ("NVIDIA A1000", None),
        ("", None),
    ],
)
def test_bf16(name: str, bf16: float | None) -> None:
    assert peak_flops(name, "bf16") == (None if bf16 is None else pytest.approx(bf16 * 1e12))


def test_other_precisions() -> None:
    assert peak_flops("Tesla V100-SXM2-16GB", "fp16") == 125e12
    assert peak_flops("Tesla V100-PCIE-16GB", "fp16") == 112e12
    assert peak_flops("Tesla V100-SXM2-16GB", "tf32") == peak_flops("V100-SXM2", "fp32") == 15.7e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "tf32") == 156e12
    assert peak_flops("NVIDIA H200", "fp8") is None

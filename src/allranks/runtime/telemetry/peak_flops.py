"""Peak FLOP/s of a GPU by its name: dense, from the vendors' data sheets.

Sparsity, which doubles the numbers of a data sheet, is left out: no training uses it. Of consumer
cards it is the rate with sums in fp32, half of the advertised one, since that is how torch
multiplies. Of AMD's cards fp32 is that of the matrix units.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class _Peak(NamedTuple):
    """Tera-operations a second; None where the card has no such units."""

    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float


_HOPPER = _Peak(66.9, 494.7, 989.4, 989.4)
_HOPPER_NVL = _Peak(60.0, 417.5, 835.5, 835.5)
_MI300X = _Peak(163.4, 653.7, 1307.4, 1307.4)

# The first that is found in the name: special forms stand before the plain one.
_PEAKS = (
    (r"V100S", _Peak(16.4, None, None, 130.0)),
    (r"V100-(PCIE|FHHL)", _Peak(14.0, None, None, 112.0)),
    (r"V100\b", _Peak(15.7, None, None, 125.0)),
    (r"\bT4\b", _Peak(8.1, None, None, 65.0)),
    (r"\bA10G\b", _Peak(35.0, 35.0, 70.0, 70.0)),
    (r"\bA10\b", _Peak(31.2, 62.5, 125.0, 125.0)),
    (r"\bA30\b", _Peak(10.3, 82.0, 165.0, 165.0)),
    (r"\bA40\b", _Peak(37.4, 74.8, 149.7, 149.7)),
    (r"\bA[18]00\b", _Peak(19.5, 156.0, 312.0, 312.0)),
    (r"\bRTX A6000\b", _Peak(38.7, 77.4, 154.8, 154.8)),
    (r"\bL4\b", _Peak(30.3, 60.0, 121.0, 121.0)),
    (r"\bL40\b", _Peak(90.5, 90.5, 181.0, 181.0)),
    (r"\bL40S\b", _Peak(91.6, 183.0, 362.0, 362.0)),
    (r"\bRTX 6000 Ada\b", _Peak(91.1, 182.1, 364.2, 364.2)),
    (r"\bRTX 3090 Ti\b", _Peak(40.0, 40.0, 80.0, 80.0)),
    (r"\bRTX 3090\b", _Peak(35.6, 35.6, 71.2, 71.2)),
    (r"\bRTX 4090\b(?! D\b)", _Peak(82.6, 82.6, 165.2, 165.2)),
    (r"\bRTX 5090\b(?! D\b)", _Peak(104.8, 104.8, 209.5, 209.5)),
    (r"\bH20\b", _Peak(44.0, 74.0, 148.0, 148.0)),
    (r"\bH[18]00 PCIe\b", _Peak(51.2, 378.0, 756.0, 756.0)),
    (r"\bH[12]00 NVL\b", _HOPPER_NVL),
    (r"\bH[128]00\b|\bGH200\b", _HOPPER),
    (r"\bB200\b", _Peak(75.0, 1100.0, 2250.0, 2250.0)),
    (r"\bGB200\b", _Peak(80.0, 1250.0, 2500.0, 2500.0)),
    (r"\bMI100\b", _Peak(46.1, None, 92.3, 184.6)),
    (r"\bMI210\b", _Peak(45.3, None, 181.0, 181.0)),
    (r"\bMI250X\b", _Peak(47.9, None, 191.5, 191.5)),
    (r"\bMI250\b", _Peak(45.3, None, 181.0, 181.0)),
    (r"\bMI300A\b", _Peak(122.6, 490.3, 980.6, 980.6)),
    (r"\bMI300X\b|\bMI325X\b", _MI300X),
)
# A slice of a card, a share of one and a card in a laptop have the name but not the units.
_PART = re.compile(r"\bMIG\b|\bGRID\b|Laptop|Max-Q", re.IGNORECASE)


def peak_flops(name: str, precision: str) -> float | None:
    """The dense peak of one device in FLOP/s; None for a card or precision that is not known.

    ``name`` is what NVML, torch or the amdgpu driver call it; of an MI250X it is one die, half of
    the card, which is a device of its own. ``precision`` is fp32, tf32, bf16 or fp16; a card
    without tf32 does such products in fp32.
    """
    peak = None if _PART.search(name) else _find(name)
    if peak is None or precision not in _Peak._fields:
        return None
    value = getattr(peak, precision)
    if value is None and precision == "tf32":
        value = peak.fp32
    return None if value is None else float(value) * 1e12


def _find(name: str) -> _Peak | None:
    return next((peak for words, peak in _PEAKS if re.search(words, name, re.IGNORECASE)), None)

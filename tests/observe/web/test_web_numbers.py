"""Numbers read alike in the page and everywhere else: format.js has the texts of wording.py."""

from __future__ import annotations

from allranks.core import formatting as wording
from web_rig import Browser

CASES = {
    "value": [
        0, 0.0004999, 2.25e-4, 0.001, 0.43123, 0.99999, 1, 3.14159, 68.125, 223.25, 412.96, 9999.4, 9999.5,
        179736.4, 999_999.4, 1e6, 6.02e23, -0.25, -12345.6, "NaN", "Infinity", "-Infinity",
    ],
    "amount": [
        0, 0.00001234, 0.004, 0.31, 7, 99.96, 640, 9999, 9999.6, 12_345, 999_900, 2.5e9, 3.1e15, "NaN",
        "-Infinity",
    ],
    "size": [0, 12, 1023, 1024, 640 * 2**20, 61.2 * 2**30, 2**50, 3 * 2**60],
    "rate": [0, 12, 999.6, 2_050, 338e6, 2.134e9, 7e12],
    "percent": [0, 0.003, 0.005, 0.0149, 0.125, 0.344, 0.985, 0.994, 0.9999, 1, 1.25],
    "span": [
        -3, 0, 0.5, 2.5, 45, 59.6, 60, 119.4, 119.5, 150, 180, 599.4, 599.5, 3569.9, 3600, 7500, 6 * 3600,
        30 * 3600, 47.995 * 3600, 48 * 3600, 76 * 3600, 1e7,
    ],
    "stepTime": [
        0, 1.5e-7, 0.000062, 0.0009994, 0.0009996, 0.2134, 0.9994, 1.236, 99.96, 599.4, 7500,
    ],
}  # fmt: skip
"""What JSON has no number for is a text that both languages read."""
PYTHON = {name: getattr(wording, name) for name in CASES if name != "stepTime"}
PYTHON["stepTime"] = wording.step_time
SHOWN = """
const [cases, done] = arguments, number = (each) => typeof each === "string" ? Number(each) : each;
import("/static/js/format.js").then((format) => done(Object.fromEntries(
  Object.entries(cases).map(([name, numbers]) => [name, numbers.map((each) => format[name](number(each)))]),
)));
"""


def test_the_same_number_is_the_same_text(browser: Browser) -> None:
    shown = browser.driver.execute_async_script(SHOWN, CASES)
    for name, numbers in CASES.items():
        expected = [PYTHON[name](float(number)) for number in numbers]
        assert dict(zip(numbers, shown[name], strict=True)) == dict(
            zip(numbers, expected, strict=True)
        )


def test_what_is_not_known_is_a_dash(browser: Browser) -> None:
    shown = browser.driver.execute_async_script(SHOWN, {name: [None] for name in CASES})
    assert shown == {name: ["–"] for name in CASES}

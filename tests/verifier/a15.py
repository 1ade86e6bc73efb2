"""The pairs of the field notes' log A15: exact strings on which math-verify or others went wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    id: str
    gold: str
    prediction: str
    is_right: bool
    """Under the default policies."""
    policy: str = ""
    """The option on which users disagree."""
    other: str | bool = ""
    """The value of that option under which the verdict is the opposite."""


PAIRS = (
    Pair("M1", r"$\frac{1}{2004!}$", r"$\frac{1}{2006!}$", False),
    Pair("M2", r"$\frac{1}{2^{99}}$", r"$\frac{1}{2^{98}}$", False),
    Pair("M4", r"$1 - \frac{1}{\mathrm{e}}$", r"$1 + \frac{1}{\mathrm{e}}$", False),
    Pair("M5", r"$1, 2, \ldots, n$", r"$1, 3, 5, \ldots, 2n-1$", False),
    Pair("M7", r"$4$", r"$4\sqrt(2)$", False),
    Pair("M8", "2", "2 2/3", False),
    Pair("M10", "1331 and 1728", "1728", False),
    Pair("M11", r"\boxed{11_8}", r"\boxed{11_2}", False),
    Pair("M13", "f(x) = 0", r"\forall x>0, f(x) = 0", False),
    Pair("M14", r"\boxed{n=3k}", r"\boxed{3}", False),
    Pair("M16", "5/4", "1 1/4", True),
    Pair("M17", "71/6", "11 5/6", True),
    Pair("M19", r"$\sqrt{1/n}$", r"$\frac{1}{\sqrt{n}}$", True),
    Pair("M20", r"\boxed{e^{16}-1}", "-1 + exp(16)", True),
    Pair("M22", r"\boxed{14 - i}", "14.0 + -1.0i", True),
    Pair("M23", r"\boxed{-2\pi}", "-2*pi", True),
    Pair("M25", r"\boxed{6.02\times 10^{23}}", r"\boxed{6.02e23}", True),
    Pair("M26", r"\boxed{1e-3}", r"\boxed{0.001}", True),
    Pair("M28", r"\boxed{7}", r"\boxed{7.}", True),
    Pair("M29", r"\boxed{\text{June 5}}", r"\boxed{June 5}", True),
    Pair("M31", r"$\text{13}$", "$13$", True),
    Pair("M32", "2/3", r"\frac{2}{3}", True),
    Pair("M34", "$-34x-45y+20z-100=0$", "$34x+45y-20z+100=0$", True),
    Pair("M35", r"$\tan^2(y)+1$", r"$\sec^2(y)$", True),
    Pair("M37", r"$(1,\frac{9}{2})$", "$(1,4.5)$", True),
    Pair("M38", "$73$", "437 + 2*234 = 905. Final Answer: **73**", True),
    Pair("M40", "42", r"<answer>\boxed{42}</answer>", True),
    Pair("M41", r"\boxed{90^\circ}", r"\boxed{90}", True, "units", "required"),
    Pair("M43", r"\boxed{3}", r"First \boxed{2}, wait no. So \boxed{3}", True),
    Pair("M44", r"\boxed{1}", r"I think \boxed{1}. The reason why it is \boxed{1} …", True),
    Pair("M46", r"\boxed{\frac{1}{3}}", r"\boxed{\frac{1}{3}}", True),
    Pair("M47", r"\boxed{\frac{1}{2}}", r"\boxed{\boxed{\frac{1}{2}}}", True),
    Pair("M49", r"\boxed{2}", r"\boxed{}", False),
    Pair("M50", r"\boxed{2}", r"\boxed{1}\boxed{2}", True, "adjacent_boxes", "list"),
    Pair("M52", "$6$", "I don't know.", False),
    Pair("M53", "42", r"text \boxed{41} <answer>\boxed{42}</answer>", True),
    Pair("M55", r"\boxed{50\%}", r"\boxed{50}", True, "percent", "value"),
    Pair("M56", "$0 < x < 12.5$", "$(0, 12.5)$", True, "intervals", "distinct"),
    Pair("M58", r"\boxed{[0,1]}", r"\boxed{0 \le x \le 1}", True, "intervals", "distinct"),
    Pair("M59", r"\boxed{(1,2)}", r"\boxed{(2,1)}", False),
    Pair("M61", r"\boxed{1,2}", r"\boxed{2,1}", True, "order", "kept"),
    Pair("M62", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\boxed{(1,2)}", True, "vectors", "distinct"),
    Pair("M64", r"\boxed{12,345}", r"\boxed{12, 345}", False, "thousands", "loose"),
    Pair("M65", r"\boxed{1,23}", r"\boxed{123}", False),
    Pair("M67", r"\boxed{1{,}000}", r"\boxed{1000}", True),
    Pair("M67, other", r"\boxed{5,\!000}", r"\boxed{5000}", True),
    Pair("M68", "$33.3$", r"$\frac{100}{3}$", False, "rounding", "reference"),
    Pair("M70", r"\boxed{3:2}", r"\boxed{6:4}", True, "ratio", "exact"),
    Pair("M71", r"\boxed{11_8}", r"\boxed{11}", True, "base_suffix", "required"),
    Pair("M73", r"\boxed{\text{No solution}}", r"\boxed{\text{no solutions}}", True, "text", "case"),
    Pair("M74", r"\boxed{x=5}", r"\boxed{5}", True, "names", "required"),
    Pair("M74, turned", r"\boxed{5}", r"\boxed{x=5}", True, "names", "required"),
    Pair("M76", "$12:00$", "$1:00$", False),
)

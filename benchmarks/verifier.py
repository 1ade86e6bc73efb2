"""Pairs a second of the verifier on two workers, against math-verify called bare in one process; 64 value bombs.

The typical pairs are responses as models write them: reasoning of some length, then a boxed answer, two of three right.
Both sides grade the same pairs in the same run, each warm; math-verify with its own limits of time and no other.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from _measure import print_machine

from tether.verifier.pool import Verifier
from tether.verifier.verdict import Mode

GOAL_RATE = 300.0
"""Typical pairs a second, on two cores."""
GOAL_BOMBS_S = 10.0
"""For all of them together."""
WORKERS = 2
ROUNDS = 3
Pair = tuple[str, str]

ANSWERS: Sequence[Pair] = (
    ("204", "204"),
    ("025", "25"),
    ("113", "133"),
    ("-7", "-7"),
    ("1{,}024", "1024"),
    ("10,080", "10080"),
    ("0.5", r"\frac{1}{2}"),
    (r"\frac{3}{4}", "0.75"),
    (r"\frac{2}{3}", r"\frac{4}{6}"),
    (r"\dfrac{71}{6}", "71/6"),
    (r"-\frac{5}{12}", r"\frac{5}{12}"),
    (r"\frac{2016}{2017}", r"\frac{2016}{2017}"),
    ("3.14", r"\pi"),
    (r"50\%", "50"),
    (r"90^\circ", "90"),
    (r"15\text{ cm}", "15"),
    (r"\$12.50", "12.5"),
    (r"2\sqrt{2}", r"\sqrt{8}"),
    (r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}"),
    (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}"),
    (r"3+2\sqrt{5}", r"3-2\sqrt{5}"),
    (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"),
    (r"2^{10}", "1024"),
    (r"3^{2016}", "3^{2016}"),
    (r"\frac{2^{99}}{3}", r"\frac{2^{98}}{3}"),
    ("2004!", "2004!"),
    (r"\binom{10}{3}", "120"),
    (r"6.02\times 10^{23}", "6.02e23"),
    (r"\frac{\pi}{6}", r"\frac{\pi}{6}"),
    (r"4\pi - 3\sqrt{3}", r"4\pi-3\sqrt 3"),
    (r"\ln 2", r"\log 2"),
    (r"e^{16}-1", "-1+e^{16}"),
    (r"\log_2 8", "3"),
    (r"x^2+2x+1", "(x+1)^2"),
    (r"(x-1)(x+1)", "x^2-1"),
    (r"x^3-3x", "x^3-3x+1"),
    (r"\frac{x}{x+1}", r"1-\frac{1}{x+1}"),
    (r"2n-1", "2n-1"),
    (r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}"),
    (r"\sec^2 y", r"\tan^2 y + 1"),
    (r"\sin 2x", r"2\sin x\cos x"),
    ("x=5", "5"),
    ("y=2x+3", "y=2x+3"),
    ("-34x-45y+20z-100=0", "34x+45y-20z+100=0"),
    (r"\frac{x^2}{4}+\frac{y^2}{3}=1", r"\frac{x^2}{16}+\frac{y^2}{12}=1"),
    ("(1,2)", "(1,2)"),
    ("(2,1)", "(1,2)"),
    (r"(1,\frac{9}{2})", "(1,4.5)"),
    (r"(3, \frac{\pi}{2})", r"(3, \frac{\pi}{2})"),
    ("1, 2, 3", "3, 2, 1"),
    (r"\{1, 2\}", "1, 2"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"),
    ("[0, 1)", "[0,1)"),
    (r"(-\infty, 3] \cup [5, \infty)", r"(-\infty,3]\cup[5,\infty)"),
    ("0 < x < 12.5", "(0, 12.5)"),
    (r"x \ge 2", r"[2, \infty)"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}", r"\begin{pmatrix} 1 & 0 \\ 1 & 1 \end{pmatrix}"),
    ("14-i", "14 - i"),
    ("3:2", "6:4"),
    (r"\text{Blue}", "blue"),
    (r"\text{No solution}", r"\text{no solutions}"),
    (r"\text{(B)}", "B"),
    (r"\text{June 5}", "June 5"),
    ("11_8", "11_2"),
    (r"\infty", r"\infty"),
    (r"\sum_{k=1}^{10} k^2", "385"),
    (r"\frac{a+b}{a-b}", r"\frac{b+a}{a-b}"),
    ("1 1/4", "5/4"),
    ("", "7"),
)
RESPONSES: Sequence[str] = (
    r"The answer is $\boxed{%s}$.",
    "We set up the equation first.\n\nLet $n$ be the number we look for. Then $n^2 - 5n + 6 = 0$, which factors as "
    "$(n-2)(n-3) = 0$, so $n = 2$ or $n = 3$. Checking both in the original problem rules one of them out.\n\n"
    "**Final answer:** $$\\boxed{%s}$$",
    "<think>\n" + "Let me see. If $a_{k+1} = 2a_k + 1$ and $a_1 = 1$ then $a_2 = 3$, $a_3 = 7$, hmm, so $2^k - 1$. "
    "Wait, that is for the other case, \\frac{1}{2} of them drop out again. " * 40 + "\n</think>\n\nPutting all of it "
    "together, the sum telescopes and what is left is \\[ \\boxed{%s} \\]",
)
BOMBS: Sequence[str] = tuple(
    bomb % n
    for bomb, n in itertools.product(
        (
            "10^{10^{%d}}",
            "%d00000000!",
            "%d999999!!",
            "%d^{2^{2^{2^{2^{2}}}}}",
            r"\sum_{k=1}^{%d0000000}\frac1k",
            r"\prod_{k=1}^{10^%d} k",
            r"\binom{10^{%d}}{5\cdot 10^7}",
            "%d**10**10",
        ),
        (7, 8, 9, 10, 11, 12, 13, 14),
    )
)
INTEGERS: Sequence[Pair] = tuple((response % n, str(n + n % 3 // 2)) for n in range(100) for response in RESPONSES)


def typical() -> list[Pair]:
    return [(response % answer, reference) for answer, reference in ANSWERS for response in RESPONSES]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def bare(pairs: Sequence[Pair]) -> None:
    """As its own page shows it: parse both, then compare."""
    from math_verify import parse, verify

    for answer, reference in pairs:
        verify(parse(f"${reference}$"), parse(answer))


def rates(mode: Mode, pairs: Sequence[Pair], beside: Callable[[Sequence[Pair]], None] | None = None) -> None:
    """Print how fast a mode is, in turns with what stands beside it."""
    with Verifier(mode, workers=WORKERS) as verifier:
        statuses = Counter(verdict.status for verdict in verifier.verdicts(pairs))
        if beside is not None:
            beside(pairs)
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(len(pairs) / seconds(lambda: verifier.verdicts(pairs)))
            if beside is not None:
                theirs.append(len(pairs) / seconds(lambda: beside(pairs)))
    told = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    rate = sorted(ours)[ROUNDS // 2]
    print(f"{mode}, {len(pairs)} pairs ({told}), median of {ROUNDS} turns")
    print(f"  {WORKERS} workers               {rate:8.0f} pairs/s   {goal(rate >= GOAL_RATE, f'>= {GOAL_RATE:.0f}/s')}")
    if theirs:
        print(f"  math-verify, 1 process  {sorted(theirs)[ROUNDS // 2]:8.0f} pairs/s")
        against = sorted(a / b for a, b in zip(ours, theirs, strict=True))[ROUNDS // 2]
        print(f"  ratio                   {against:8.2f}x")


def bombs() -> None:
    with Verifier(workers=WORKERS) as verifier:
        verifier.verdicts(typical()[:8])
        pairs = [(rf"so it is \boxed{{{bomb}}}", "1") for bomb in BOMBS]
        statuses: Counter[str] = Counter()
        took = seconds(lambda: statuses.update(verdict.status for verdict in verifier.verdicts(pairs)))
    told = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    print(f"{len(pairs)} value bombs in one batch ({told})")
    met = goal(took <= GOAL_BOMBS_S, f"<= {GOAL_BOMBS_S:.0f} s")
    print(f"  {WORKERS} workers               {took:8.2f} s         {met}")


def goal(is_met: bool, text: str) -> str:
    return f"goal {text}: {'met' if is_met else 'missed'}"


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    logging.disable(logging.ERROR)  # math-verify warns of what it cannot read
    print_machine()
    rates("robust", typical(), bare)
    rates("upstream", typical())
    rates("strict-int", INTEGERS)
    bombs()


if __name__ == "__main__":
    main()

"""What is too large to compute is told from its looks: every bomb of the notes and its kin, no answer of a person."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.verifier.gate import DEEPEST, MOST_CHARACTERS, too_large
from tether.verifier.sizes import MOST_DIGITS_WRITTEN

BOMBS = (
    r"10^{10^{10}}",
    r"\boxed{10^{10^{10}}}",
    r"100000000!",
    r"\boxed{100000000!}",
    r"9999999!!",
    r"2^{2^{2^{2^{2^{2}}}}}",
    r"\boxed{2^{2^{2^{2^{2^{2}}}}}}",
    r"2^2^2^2^2^2",
    r"2**2**2**2**2**2",
    r"\sum_{k=1}^{10^9}\frac1k",
    r"\boxed{\sum_{k=1}^{10^9}\frac1k}",
    r"\sum\limits_{k=1}^{1000000000} k^{-1}",
    r"\sum^{10^9}_{k=1} k",
    r"\sum_{1 \le k \le 10^9} k",
    r"\sum_{i=1}^{1000}\sum_{j=1}^{1000} \frac{1}{i+j}",
    r"\prod_{k=1}^{10^9} k",
    r"\int_0^{10^9} \sin x^2 \, dx",
    r"\binom{10^9}{5*10^8}",
    r"\binom{10^9}{5 \cdot 10^8}",
    r"\dbinom{1000000000}{500000000}",
    r"{10^9 \choose 5\cdot 10^8}",
    r"binomial(10**9, 5*10**8)",
    r"10**10**10",
    r"10^10^10",
    r"10^{10\,000\,000\,000}",
    r"10^{10{,}000{,}000}",
    r"(10^9)!",
    r"\left(10^{9}\right)!",
    r"((10!)!)!",
    r"(10!)!",
    r"x^{10^9}",
    r"(x+1)^{100000}",
    r"(a+b+c+d+e+f)^{1000}",
    r"((x+1)^{999}+1)^{999}",
    r"\underbrace{9 \ldots 9}_{10^9}",
    r"\zeta(10^9)",
    r"\Gamma(10^9)",
    r"factorial(10^9)",
    r"1e999999999",
    r"1e-999999999",
    r"10^{-10^{10}}",
    r"\frac{1}{10^{10^{10}}}",
    r"1 + 2 \cdot 10^{10^{10}} - 7",
    r"2^{10^{10}+x}",
    r"e^{e^{e^{e^{e}}}}",
    r"\exp(\exp(\exp(100)))",
    r"3 \uparrow\uparrow 4",
    r"10¹⁰⁰⁰⁰⁰⁰⁰⁰⁰",
    "\uff11\uff10^{\uff11\uff10^{\uff11\uff10}}",
    r"\log_{2^5}(\log_{2^4}(\log_{2^3}(\log_{2^2}(\log_{2^1}(x)))))",
    r"\ln\ln\ln\ln\ln x",
    "7" * (MOST_DIGITS_WRITTEN + 1),
    "{" * (DEEPEST + 1) + "1",
    "(" * 10_000,
    "x^" * 5_000 + "2",
    "\\sqrt" * 1_000 + "2",
    "1+" * MOST_CHARACTERS,
)
ANSWERS = (
    "",
    "0",
    "204",
    r"2004!",
    r"\frac{1}{2004!}",
    r"2^{99}",
    r"\frac{1}{2^{99}}",
    r"2^{1000}",
    r"10^{23}",
    r"6.02\times 10^{23}",
    r"6.02e23",
    r"1e-3",
    r"3^{2016}",
    r"2015^{2016}",
    r"\binom{2016}{1008}",
    r"\binom{10^9}{2}",
    r"2^{2^{10}}",
    r"2^{2^{2^{2}}}",
    r"10^{10^4}",
    r"2^{65536}",
    r"\frac{2^{2016}-1}{3^{2015}}",
    r"3^{\frac{2016}{2017}}",
    r"2^{\frac{1}{1000}}",
    r"x^{2016}+1",
    r"(x+1)^{2016}",
    r"(a+b+c)^{100}",
    r"\sum_{k=1}^{2016} \frac{1}{k}",
    r"\sum_{k=1}^{\infty} \frac{1}{k^2}",
    r"\sum_{k=0}^{n} \binom{n}{k} 2^k",
    r"\int_0^{\infty} e^{-x^2}\,dx",
    r"1^{10^{10}}",
    r"(-1)^{10^{10}}",
    r"\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2}}}}}",
    r"\log_2(\log_2(\log_2 x))",
    r"\frac{1}{1+\frac{1}{1+\frac{1}{1+\frac{1}{1+\frac{1}{2}}}}}",
    r"\frac12",
    r"\frac 3 4",
    r"5\sqrt3",
    r"90^\circ",
    r"50\%",
    r"x^2+2x+1",
    r"(1, \frac{9}{2})",
    r"[0, 1)",
    r"\begin{pmatrix}1\\2\end{pmatrix}",
    r"1{,}000{,}000{,}000",
    r"\text{June 5}",
    r"\{1, 2, \ldots, n\}",
    r"e^{16} - 1",
    r"-1 + exp(16)",
    r"n!",
    r"(2n)!",
    r"\frac{(2n)!}{n!\,n!}",
    r"n^{n^{n}}",
    r"\log_{10} 2004!",
    r"\sin^2 x + \cos^{2} x",
    r"3.1415926535897932384626433832795",
    r"11_8",
    r"x_{10000000}",
    r"a_{2016}",
    "7" * MOST_DIGITS_WRITTEN,
    "The answer is 12. Next we check 13!",
)


@pytest.mark.parametrize("text", BOMBS, ids=lambda text: text[:40])
def test_bombs_are_stopped(text: str) -> None:
    assert too_large(text)


@pytest.mark.parametrize("text", ANSWERS, ids=lambda text: text[:40])
def test_answers_that_people_write_pass(text: str) -> None:
    assert not too_large(text)


@given(st.text())
def test_it_never_raises(text: str) -> None:
    assert too_large(text) in (True, False)


PIECES = r"""0 1 2 9 10 10^9 ^ ** _ { } ( ) [ ] ! !! + - * / , = x e \frac \sqrt \sum \binom \log \exp \choose
\left( \right) \underbrace \zeta \int \limits . 1e99999 \pi & \\ \{ \} | ' binomial( 1e400 \uparrow"""


@given(st.lists(st.sampled_from([*PIECES.split(), " "]), max_size=40))
def test_it_never_raises_on_broken_formulas(pieces: list[str]) -> None:
    assert too_large("".join(pieces)) in (True, False)


@given(st.text(alphabet=st.characters(codec=None), max_size=50))
def test_it_takes_any_characters_there_are(text: str) -> None:
    assert too_large(text) in (True, False)


@pytest.mark.parametrize(
    "piece", ["1", "1+", "{", "}", "x^", "(1)", "\\frac", "!", "\\\\", "10^", "²", "√", "a ", ",", "{,}", "1e", "-"]
)
def test_its_time_is_linear_in_the_text(piece: str) -> None:
    def seconds(length: int) -> float:
        text, took = (piece * length)[:length], []
        for _ in range(3):
            began = time.process_time()
            too_large(text)
            took.append(time.process_time() - began)
        return min(took)

    assert seconds(MOST_CHARACTERS) < 40 * max(seconds(MOST_CHARACTERS // 10), 1e-3)  # of a square: 100
    assert seconds(1_000_000) < 0.1

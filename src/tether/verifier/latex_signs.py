r"""What LaTeX's macros without arguments look like as plain text, as pylatexenc 2.x sets them."""

from __future__ import annotations

NUMBERS = """
infty 221e  cup 222a  cap 2229  cdot 00b7  times 00d7  div 00f7  pm 00b1  mp 2213  ast 2217  star 22c6
circ 2218  bullet 2219  le 2264  leq 2264  ge 2265  geq 2265  leqslant 2a7d  geqslant 2a7e  neq 2260
approx 2248  equiv 2261  sim 223c  simeq 2243  cong 2245  propto 221d  ll 226a  gg 226b  in 2208  notin 2209
subset 2282  supset 2283  subseteq 2286  supseteq 2287  setminus 2216  emptyset 2205  varnothing 2205
to 2192  rightarrow 2192  leftarrow 2190  Rightarrow 21d2  Leftrightarrow 21d4  mapsto 21a6  angle 2220
perp 22a5  parallel 2225  mid 007c  vert 007c  lvert 007c  rvert 007c  Vert 2016  lVert 2016  rVert 2016
lfloor 230a  rfloor 230b  lceil 2308  rceil 2309  langle 27e8  rangle 27e9  lbrace 007b  rbrace 007d
dots 2026  ldots 2026  cdots 22ef  vdots 22ee  ddots 22f1  vee 2228  wedge 2227  lnot 00ac  oplus 2295
otimes 2297  square 25a1  sum 2211  prod 220f  int 222b  oint 222e  partial 2202  nabla 2207  ell 2113
hbar 0127  aleph 2135  wp 2118  forall 2200  exists 2203  surd 221a  therefore 2234  because 2235
prime 0027  textdegree 00b0  textasciitilde 007e  textbackslash 005c  backslash 005c  phi 03d5  varphi 03c6
epsilon 03f5  varepsilon 03b5  vartheta 03d1  alpha 03b1  beta 03b2  gamma 03b3  delta 03b4  zeta 03b6
eta 03b7  theta 03b8  iota 03b9  kappa 03ba  lambda 03bb  mu 03bc  nu 03bd  xi 03be  omicron 03bf  pi 03c0
rho 03c1  sigma 03c3  tau 03c4  upsilon 03c5  chi 03c7  psi 03c8  omega 03c9  Gamma 0393  Delta 0394
Theta 0398  Lambda 039b  Xi 039e  Pi 03a0  Sigma 03a3  Upsilon 03a5  Phi 03a6  Psi 03a8  Omega 03a9
"""
"""Names, and the code points of their signs."""
WORDS = ("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "exp", "lim")
BOUNDS = ("max", "min", "sup", "inf")
SPACES = {" ": " ", ",": " ", ";": " ", ":": " ", "quad": "  ", "qquad": "    ", "\\": "\n", "-": "\xad"}

MACROS: dict[str, str] = {
    **{name: chr(int(code, 16)) for name, code in zip(NUMBERS.split()[::2], NUMBERS.split()[1::2], strict=True)},
    **{name: name for name in (*WORDS, *BOUNDS, *"{}%$&#_")},
    **SPACES,
}
"""What a macro stands for; one that is not here vanishes."""

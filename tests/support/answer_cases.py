r"""Answers as models write them, by kind: for each gold answer some that are right, and some that are wrong.

Shared by the tests of equality. Every wrong answer is near the rule that takes the right ones of its kind.
"""

Kind = list[tuple[str, list[str], list[str]]]


def _counted(number: int, things: str) -> list[str]:
    return [f"{number} {thing}" for thing in things.split(", ")]


NOUNS: Kind = [
    (
        "12 apples",
        ["12", "12 apples", "12 red apples", "12.0", r"12\text{ apples}", "12 apples left"],
        ["12 oranges", "13 apples", "12 dozen apples", "12 thousand apples"],
    ),
    (
        "7",
        ["7 pages", "7 children", "7 foxes", "7 Seiten", "7 pommes", "7 manzanas", "7 girls in total"],
        ["7 tens", "7 twos", "7 dozens", "7 fewer", "7 more", "7 halves", "7 fois", "7 veces"],
    ),
    (
        "30",
        ["30 eggs", "30 marbles", "30 Eggs", "30 blue pens", r"30 \text{ cookies}"],
        ["30 quarters", "30 thirds", "30 percentage points", "30 plus", "30 minus", "30 thirteenths"],
    ),
    ("1", ["1 apple", "1 bus", "1 way"], ["1 half", "1 dozen", "1 less", "1 third", "1 squared", "1 more"]),
    ("1/2", ["1/2 cake", r"\frac{1}{2} pizza", "1/2 of it", "1/2 cup"], ["1/2 dozen", "1/2 less", "1/2 million"]),
    (
        "42",
        ["42 in total", "42 altogether", "42 points", "42 square units", "42 people"],
        [
            "42 squared",
            "42 negative",
            "42 hundred",
            "42 Tausend",
            "42 lakh",
            "42 crores",
            "42 pairs",
            "42 couples",
            "42 grand",
            "42 k",
            "42 K",
            "42 gross",
            "42 score",
            "42!",
            "42 times",
            "42 fold",
            "42 or",
            "42 not",
            "42 wrong",
            "42 x",
            "42 Mio",
            "42 mil",
            "42 millones",
            "42 docenas",
            "42 milliers",
            "42 Dutzend",
        ],
    ),
    (
        "42000",
        ["42 thousand", "42 thousand dollars", "42 Tausend", "42 thousand people"],
        ["42", "42 million", "42 thousand thousand", "42 thousand less"],
    ),
    (
        "12 students",
        ["12 students", "12 Students", "12"],
        ["12 teachers", "12 students or 13", "12 students and 3 teachers"],
    ),
    ("-42", ["negative 42", "minus 42", "Negative 42", "-42 points"], ["42", "negative -42", "not -42"]),
]
COUNTED: Kind = [
    (
        "1",
        _counted(1, "egg, tree, solution, outcome, Student, red ball, child, manzana, person, triangle, goat, house"),
        _counted(
            1, "tenth, fifth, hundredth, billionth, lac, googol, kilo, alpha, omega, xyz, nothing, invalid, unknown"
        )
        + _counted(1, "decade, mistake, error, dime, part, sin, bit more"),
    ),
    ("1/2", ["1/2 apple", "1/2 of the cake", "1/2 of a pizza"], ["1/2 abc", "1/2 of the million", "1/2 tenth"]),
    ("0.5", ["0.5 apple", "0.5 pie"], ["0.5 alpha", "0.5 nothing"]),
    (
        "5",
        _counted(5, "teams, potatoes, cherries, boxes, buses, sandwiches, wolves, women, tests")
        + _counted(5, "Kinder, personnes, libros, perros, élèves, Bücher, FLOWERS, young foxes, large fish"),
        _counted(5, "lacs, crs, centenas, millares, billones, bilhões, quinzaines, trentaines, misses, debts"),
    ),
    (
        "3",
        _counted(
            3, "combinations, arrangements, divisors, squares, integers, terms, cubes, lines, angles, prisms, sets"
        )
        + _counted(
            3, "tickets, stamps, bottles, pencils, cookies, cakes, balloons, coins, trucks, bicycles, cards, games"
        )
        + _counted(3, "friends, brothers, teachers, workers, players, families, babies, monkeys, horses, chickens"),
        _counted(
            3, "trillones, cuatrillones, centenares, quarantaines, twenties, twelves, bps, dimes, decades, quintos"
        )
        + _counted(3, "medios, sextos, séptimos, novenos, décimos, milésimas, cos, sins, abs, lambdas, alphas, denies")
        + _counted(3, "refutes, contradicts, wrongs, kilos, nickels, centuries, orders, apple, units of ten"),
    ),
    ("2", ["2 windows", "2 roads", "2 flores"], ["2 terços", "2 quints"]),
    ("42", ["42 of the cookies", "42 of the marbles", "42 of them"], ["42 lacs", "42 quints", "42 of the quarters"]),
]
UNITS: Kind = [
    (
        "5",
        [
            "5元",
            "5 元",
            "5块",
            "5美元",
            "5個",
            "5人",
            "5本",
            "5 Meter",
            "5 mètres",
            "5 Stunden",
            "5 heures",
            "5メートル",
            "5円",
            "5秒",
            "5个苹果",
            "5名学生",
        ],
        ["5万", "5亿", "5倍", "5双", "5对", "5成", "5个半", "5多个", "5百", "5千", "5万元", "5折"],
    ),
    (
        "8 cm",
        ["8厘米", "8 厘米", "8センチ", "8 Zentimeter", "8 centimètres", "8公分"],
        ["8米", "8毫米", "8千米", "8 Meter"],
    ),
    ("20 m", ["20米", "20メートル", "20 metres"], ["20厘米", "20 km", "20米 2"]),
    ("50000", ["5万", "5万元", "50000元"], ["5", "5千", "5亿"]),
    ("3 km", ["3千米", "3公里", "3 Km", "3 kilometres"], ["3000", "3米"]),
    ("5 mg", ["5 milligrams", "5mg"], ["5 Mg", "5 g", "5 MG"]),
    ("3 mm", ["3 millimeters", "3 毫米"], ["3 Mm", "3 MM", "3 m"]),
    ("5 ml", ["5 mL", "5 milliliters"], ["5 ML", "5 Ml", "5 l"]),
    (
        "50%",
        ["50 percent", "50 per cent", "50 Prozent", "50 pour cent", "0.5", "50", "50 pct"],
        ["50 percentage points", "0.5%", "5%"],
    ),
    (
        "5 m/s",
        [
            r"5 \frac{\text{m}}{\text{s}}",
            r"5\,\frac{\mathrm{m}}{\mathrm{s}}",
            r"5\ \mathrm{m\,s^{-1}}",
            "5 m per second",
            "5 metres per second",
            r"5\text{ m/s}",
            "5",
            "5米/秒",
        ],
        ["5 m/h", "5 km/s", r"5 \frac{\text{s}}{\text{m}}", "5 m", r"5\ \mathrm{m\,s^{-2}}", r"5\ \mathrm{m\,s}"],
    ),
    (
        "9.8 m/s^2",
        [r"9.8\ \mathrm{m\,s^{-2}}", r"9.8\,\text{m/s}^2", r"9.8 \frac{\text{m}}{\text{s}^2}"],
        ["9.8 m/s", "9.8 m^2/s"],
    ),
    (
        "12",
        ["12 dollars per hour", "12 km/h", "12 pages per day", "12 miles an hour"],
        ["12 per dozen", "12 per", "12/hour/"],
    ),
    ("20", ["20 degrees Celsius", "20°C", "20 N", "20 kWh", "20 kg"], ["20 M", "20 G"]),
]
CURRENCIES: Kind = [
    (
        "12",
        [
            "USD 12",
            "US$12",
            "A$12",
            "EUR 12",
            "€12",
            "12 €",
            "12 bucks",
            "12 EUR",
            "Rs. 12",
            "12 yuan",
            "CHF 12",
            "$12.00",
            "12 USD",
        ],
        ["USD 12 or 13", "USD 12 million", "$12k", "USD -12", "12 cents on the dollar", "$12 less"],
    ),
    (
        "$12",
        ["USD 12", "US$12", "12 dollars", "12 USD", "$12 USD", "12"],
        ["€12", "12 euros", "A$12", "CAD 12", "12 cents", "$12 EUR"],
    ),
    ("1234.50", ["$1,234.50", "USD 1,234.50", "1 234.50", "$1 234.5"], ["$1,234.05", "$12,34.50"]),
    ("$15/hour", ["15 dollars per hour", "$15 per hour", "15"], ["$15 per day", "$15"]),
]
STYLE: Kind = [
    (
        "e^2",
        [r"\mathrm{e}^2", r"{\rm e}^2", r"\text{e}^{2}", r"\operatorname{e}^2", r"\exp(2)"],
        [r"\mathrm{e}^3", r"2\mathrm{e}", r"\mathrm{c}^2"],
    ),
    (r"\mathrm{e}^{x}", ["e^{x}", "e^x"], ["e^{-x}", "x^e"]),
    ("2e", [r"2\mathrm{e}", r"2 {\rm e}"], ["2", r"\mathrm{e}^2"]),
    ("3+2i", [r"3+2\mathrm{i}", r"3 + 2\,\mathrm{i}"], [r"3-2\mathrm{i}", "3+2"]),
    (
        "5",
        [
            r"\color{red}{5}",
            r"\color{blue}5",
            r"{\color{red} 5}",
            r"\textcolor{green}{5}",
            r"\underline{5}",
            r"\colorbox{yellow}{5}",
            r"\phantom{0}5",
            r"5\qquad",
            r"\quad 5",
            r"\overline{\underline{5}}",
            r"\textbf{\color{red}{5}}",
            r"\mathbf{5}",
            r"\emph{5}",
            "*5*",
            "<b>5</b>",
            r"\boldsymbol{5}",
            r"\mathrm{5}\,",
            "\N{MATHEMATICAL SANS-SERIF DIGIT FIVE}",
            "\N{FULLWIDTH DIGIT FIVE}",
        ],
        [
            r"\color{white}{5}",
            r"\textcolor{white}{5}",
            r"\cancel{5}",
            r"\phantom{5}",
            r"\color{red}{6}",
            r"5\phantom{0}0",
            r"1\underline{5}",
            r"\underline{1}5",
            r"\sout{5}",
            r"\color{red}{5} \color{blue}{6}",
            r"\colorbox{black}{5}",
            r"\overline{6}",
            "*5",
            r"\underline{5}\underline{0}",
            r"-\color{red}{5}",
        ],
    ),
    (
        r"\frac{1}{2}",
        [r"\mathbf{\frac{1}{2}}", r"\color{red}{\frac{1}{2}}", r"\underline{\frac{1}{2}}", r"\boldsymbol{\frac12}"],
        [r"\underline{1}{2}", r"\cancel{\frac{1}{2}}", r"\color{red}{\frac{2}{1}}"],
    ),
    (
        "x+1",
        ["\N{MATHEMATICAL ITALIC SMALL X}+1", r"\mathbf{x}+1", r"\underline{x+1}"],
        ["\N{MATHEMATICAL ITALIC SMALL Y}+1", r"\mathbb{X}+1"],
    ),
]
APPROXIMATE: Kind = [
    (r"\approx 3.14", ["3.14", "≈3.14", "about 3.14"], ["3.1", "3.142", r"\pi"]),
    (
        "3.14",
        [
            "≈3.14",
            r"\sim 3.14",
            "about 3.14",
            r"\approx 3.14",
            "~3.14",
            "approximately 3.14",
            "roughly 3.14",
            r"x \approx 3.14",
            "约3.14",
            r"\text{about } 3.14",
            "etwa 3.14",
            "environ 3.14",
        ],
        [
            r"\approx 3.1",
            "at least 3.14",
            "less than 3.14",
            "nearly 3.15",
            r"\approx \pi",
            r"\not\approx 3.14",
            "about 3.14 or 3.15",
            "almost 3.14",
        ],
    ),
    (
        "42",
        ["42"],
        [
            "~42",
            r"\approx 42",
            "≈42",
            "about 42",
            "around 42",
            r"\sim 42",
            "approximately 42",
            "roughly 42",
            r"x\approx 42",
            "约42",
            "nearly 42",
            "almost 42",
            "at most 42",
            "ca. 42",
            "circa 42",
        ],
    ),
    (r"\approx 42", ["42", "~42", "about 42"], ["~43", "420"]),
    (r"\frac{1}{3}", ["1/3"], [r"\approx \frac{1}{3}", r"\approx 0.333", "~1/3"]),
    ("$3.50", ["about $3.50", "≈ 3.50"], ["about $3.60", "about €3.50"]),
    (r"\sqrt{2}", [r"2^{1/2}"], [r"\approx \sqrt{2}", r"\approx 1.414"]),
]
CHOICES: Kind = [
    (
        "E",
        ["E: A polygenic risk score", "(E)", "E.", r"\textbf{(E)}", "E) all of the above"],
        ["E or D", "not E", "E: or D", "D: E", "E, D"],
    ),
    (
        "C",
        ["C) A and B", "C) both A and B", "C. 42", "(C) It does increase", "C) Vitamin D"],
        [
            "C) or B",
            "C) D",
            "A) C",
            "C, because not B, D",
            "C? B",
            "C. wrong, it is B",
            "C. or the first",
            "C) A or B",
            "C. else the third",
            "C/D",
        ],
    ),
    (
        "D",
        ["(D) A triangle", "D) No change", "D: None of these", "D. a dog and a cat", r"\text{D) A square}"],
        ["(D) (A)", "D. maybe", "D) isn't right", "D) E", "(A) D triangle", "D. not sure"],
    ),
    (
        "B",
        ["B) No change", "B. Not enough information", "B: Paris", "B) supply and demand"],
        ["A) No change", "B. No, C", "B) but C", "B. A", "B) incorrect", "B; C", "B) 42, C) 43", "B or A"],
    ),
    (
        "AC",
        [
            "A, C",
            "A and C",
            "C, A",
            "(A)(C)",
            "A;C",
            "A、C",
            "A 和 C",
            "Options A and C",
            "A, and C",
            "A & C",
            r"\text{A, C}",
        ],
        ["A", "A, B, C", "A or C", "A, D", "AB", "not A, C", "A, C, C", "A/C"],
    ),
    (
        "ABD",
        ["A、B、D", "A, B, D", "D, B, A", "A, B and D", "A B D"],
        ["A, B", "A, B, C, D", "ABC", "A, B or D", "A-D"],
    ),
    ("A,C", ["AC", "A, C", "C and A"], ["A", "AB", "A or C"]),
    ("A", ["A", "(A)"], ["AC", "A, C", "A and C", "ABCD", "A B C D"]),
]
DENIED: Kind = [
    (
        "A",
        [
            "A) Paris",
            "A. the cat",
            "A: increases",
            "A) Oxygen",
            "A) 3x+5",
            "A: none of the above",
            "A) no effect",
            "A. 12 cm",
            "A: x = 5",
            "A) It increases",
            "A) type B",
            r"\textbf{A)} Paris",
            "A) (2, 3)",
            "A: 北京",
            "A) A cat",
            "A: because the sum is even",
            "A) the left side",
            "A: Rom",
            "A) roja",
        ],
        [f"A) {text}" for text in ("can be ruled out", "cannot be right", "impossible", "b)", "错误", "c", "неверно")]
        + [f"A: {text}" for text in ("excluded", "never", "no", "fails", "rejected", "neither", "it's the opposite")]
        + [f"A: {text}" for text in ("错", "不对", "falsch", "nicht", "faux", "Not right", "NO", "maybe", "❌", "nope")]
        + [f"A. {text}" for text in ("No.", "b", "还是", "is out", "might be", "I doubt it", "a or d", "jamais")],
    ),
]
SYSTEMS: Kind = [
    (
        "(2,3)",
        [
            "x=2, y=3",
            "x=2 and y=3",
            "y=3, x=2",
            r"\begin{cases}x=2\\y=3\end{cases}",
            r"\begin{aligned}x&=2\\y&=3\end{aligned}",
            "(x,y)=(2,3)",
            r"\left\{\begin{array}{l}x=2\\y=3\end{array}\right.",
            "a=2, b=3",
        ],
        [
            "x=3, y=2",
            "x=2 or y=3",
            "x=2",
            "x=2, x=3",
            "y=2, x=3",
            "x=2, y=3, z=4",
            r"\begin{cases}x=3\\y=2\end{cases}",
            "(y,x)=(3,2,1)",
            "x=2, y=4",
        ],
    ),
    ("(x,y)=(2,3)", ["x=2,y=3", "y=3,x=2", r"\begin{cases}x=2,\\y=3.\end{cases}"], ["x=3,y=2", "a=2,b=3", "x=2"]),
    (r"\begin{aligned}x&=2\\y&=3\end{aligned}", ["x=2,y=3", "(x,y)=(2,3)", "(2,3)"], ["(3,2)", "x=2,y=-3", "x=2"]),
    ("x=1, y=2, z=3", ["(1,2,3)", "z=3, x=1, y=2"], ["(1,3,2)", "(1,2)", "x=1, y=2"]),
    (r"x=1\text{或}x=2", ["x=1,2", "1, 2", "x=2 or x=1", "x=1 oder x=2", r"\{1,2\}"], ["x=1,3", "x=1", "1,2,3"]),
    ("1, 2", ["1或2", "1和2", "2 und 1", r"1\text{ 或 }2", "1 ou 2", "1または2"], ["1或3", "1或2或3", "1", "12"]),
    (
        r"x<1或x>2",
        [r"(-\infty,1)\cup(2,+\infty)", "x<1 or x>2", "x>2 or x<1"],
        [r"(-\infty,1]\cup(2,\infty)", "1<x<2", "x<1且x>2", "x<1"],
    ),
]
TIMES: Kind = [
    (
        "18:00",
        ["6 p.m.", "6 pm", "6:00 PM", "18:00", "6PM", "18h00", "下午6点", "18 Uhr", r"6\text{ p.m.}"],
        ["6 a.m.", "6 am", "8 p.m.", "6:30 pm", "上午6点", "6:00 a.m.", "18:30", "9 Uhr"],
    ),
    ("noon", ["12:00", "12 p.m.", "12 noon", "12:00 pm", "Noon"], ["midnight", "12 a.m.", "0:00", "12:30", "11:00"]),
    ("midnight", ["0:00", "24:00", "12 a.m.", "12:00 am"], ["12:00 pm", "noon", "12:00"]),
    ("9:30 a.m.", ["9:30", "9:30 AM", "09:30", "9h30"], ["9:30 p.m.", "21:30", "9 a.m."]),
]
SETS: Kind = [
    ("(1,2)", ["]1,2["], ["[1,2]", "]1,2]", "[1,2[", "]2,1["]),
    ("[1,2)", ["[1,2["], ["]1,2]", "[1,2]", "]1,2["]),
    (
        r"(-\infty,1)\cup(2,\infty)",
        [r"]-\infty,1[\cup]2,+\infty["],
        [r"]-\infty,1]\cup]2,+\infty[", r"]-\infty,1[\cup[2,+\infty["],
    ),
    (
        "[0,1)",
        [
            r"\{x \mid 0\le x<1\}",
            r"\{x\in\mathbb{R} \mid 0\le x<1\}",
            r"\{x : 0 \le x < 1\}",
            r"\left\{x \mid 0\le x<1\right\}",
        ],
        [
            r"\{x \mid 0< x<1\}",
            r"\{x\in\mathbb{Z} \mid 0\le x<1\}",
            r"\{x \mid 0\le x\le 1\}",
            r"\{y \mid 0\le x<1\}",
            r"\{x^2 \mid 0\le x<1\}",
        ],
    ),
    (
        r"(1,\infty)",
        [r"\{x|x>1\}", r"\{t \mid t>1\}", r"\{x:x>1\}"],
        [r"\{x|x<1\}", r"\{x|x\ge 1\}", r"\{x|y>1\}", r"\{x\in\mathbb{N}|x>1\}"],
    ),
    (r"\{x|x>1\}", [r"(1,\infty)", "x>1", r"\{x \mid x>1\}"], ["(1,2)", "x<1"]),
    (
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        ["[[1,2],[3,4]]", "[[1, 2], [3, 4]]", "((1,2),(3,4))"],
        ["[[1,3],[2,4]]", "[1,2,3,4]", "[[1,2,3,4]]", "[[1,2],[3]]", r"\{\{1,2\},\{3,4\}\}"],
    ),
    (
        r"\begin{pmatrix}1\\2\end{pmatrix}",
        ["[1,2]^T", r"(1,2)^{\top}", r"[1,2]^{\mathrm{T}}", "[[1],[2]]"],
        ["[1,2]", "[2,1]^T", "[[1,2]]", "(1,2)", "[1,2]^2"],
    ),
]
LOGARITHMS: Kind = [
    (r"\log_{10} 2", [r"\lg 2", r"\log 2", r"\operatorname{lg} 2"], [r"\ln 2", r"\log_2 10", r"\lg 3"]),
    (r"\lg 100", ["2"], ["10", "100"]),
    (r"\log 2", [r"\lg 2"], [r"\ln 2", r"\lg 20"]),
    (r"\operatorname{sin} x", [r"\sin x", r"\mathrm{sin}\,x", r"\text{sin} x"], [r"\cos x", r"\sin y", r"\sin^2 x"]),
    (
        r"\operatorname{Re}(z)",
        [r"\text{Re}(z)", r"\mathrm{Re}(z)", r"\Re(z)"],
        [r"\operatorname{Im}(z)", r"\Re(w)", "z"],
    ),
    (
        r"\operatorname{arcsinh} x",
        [r"\sinh^{-1} x", r"\operatorname{arsinh} x", r"\operatorname{arsinh}(x)"],
        [r"\cosh^{-1} x", r"\sinh x", r"\frac{1}{\sinh x}"],
    ),
    (r"\tan x", [r"\tg x", r"\operatorname{tg} x"], [r"\ctg x", r"\tg y"]),
]
NUMBERS: Kind = [
    (
        "1000",
        ["1 000", "1_000", "1'000", "1,000", r"1\,000", "1 000 apples"],
        ["1 00", "1 0000", "100 0", "1 000 000", "1_00", "1.000,5", "1 000/2"],
    ),
    ("1234567", ["1 234 567", "1_234_567", "1'234'567"], ["1 234 56", "1234 567", "1 234 568", "1 234, 567"]),
    ("3.5", [r"3\frac{1}{2}", "3 1/2", "3½", r"3 \tfrac12", "3 1/2 cups"], ["3 2/1", r"\frac{31}{2}", "3 3/2", "31/2"]),
    (
        "12",
        ["= 12", r"\Rightarrow 12", r"\therefore 12", "∴ 12", "⇒ 12", "=12", r"\implies 12", r"\to 12", "-> 12"],
        [
            r"\ne 12",
            "!= 12",
            "> 12",
            "<= 12",
            "== 12",
            r"\not\Rightarrow 12",
            "= 13",
            r"\Leftarrow 21",
            "11 = 12",
            "= -12",
            r"\Rightarrow 12 \Rightarrow 13",
        ],
    ),
    (
        r"2 \pmod 5",
        ["2 mod 5", r"2 \bmod 5", r"2\ (\text{mod } 5)", "2 (mod 5)"],
        ["3 mod 5", "2 mod 7", "2 mod 25", "7 mod 5"],
    ),
    (
        r"x\equiv 2 \pmod{5}",
        [r"x\equiv 2\bmod 5", r"x\equiv 2\ (\text{mod } 5)", "x≡2 (mod 5)", r"x \equiv 2 \ (\operatorname{mod} 5)"],
        [r"x\equiv 3\bmod 5", r"y\equiv 2\pmod 5", r"x\not\equiv 2 \pmod 5", r"x\equiv 2\pmod 6"],
    ),
    (
        r"\angle ABC=30^\circ",
        ["30", r"30^\circ", r"m\angle ABC = 30", "∠ABC = 30°", "30 degrees"],
        ["31", r"\angle ACB=30^\circ", "30 radians", r"\angle ABC \approx 30", r"\angle ABC=300"],
    ),
    (
        "30",
        [r"m\angle ABC = 30", r"\angle A = 30^\circ", r"\angle{ABC}=30"],
        [r"2\angle ABC = 30", r"-\angle A = 30", r"\angle A > 30"],
    ),
    (
        "5",
        ["AB = 5", r"\overline{AB} = 5", "|AB| = 5", "P(A) = 5", "x = 5 cm"],
        ["2AB = 5", "AB > 5", "AB = 5x", "AB = CD = 5", r"AB \ne 5", "ab = 5"],
    ),
    ("AB = 5", ["5", r"\overline{AB}=5"], ["CD = 5", "AB = 6", "AB"]),
    ("90", ["90°", "90 deg", r"90\degree", "90 Grad"], ["90 minutes of", r"\sin 90"]),
]
BOXES: Kind = [
    (
        "42",
        [
            r"\boxed{\boxed{42}}",
            r"$\boxed{\boxed{42}}$",
            r"so it is \boxed{42}",
            r"\boxed{42} is the answer!",
            r"\boxed{The answer is \boxed{42}}",
            r"\boxed{x = \boxed{42}}",
            r"I get \boxed{42}",
            r"a total of \boxed{42}",
            r"\boxed{\boxed{42} apples}",
            r"\boxed{42}.",
            r"\boxed{\phantom{0}42}",
        ],
        [
            r"\boxed{2\boxed{42}}",
            r"\boxed{-\boxed{42}}",
            r"i\boxed{42}",
            r"$i\boxed{42}$",
            r"a\boxed{42}",
            r"\boxed{i\boxed{42}}",
            r"\boxed{\boxed{41}\boxed{42}}",
            r"\boxed{\boxed{42} thousand}",
            r"\boxed{42}!",
            r"$\boxed{42}$!",
            r"\boxed{42} !",
            r"Is it \boxed{42}?",
            r"\boxed{42}?",
            "42?",
            r"\boxed{\boxed{42}!}",
            r"the sum of \boxed{42}",
            r"4\phantom{0}2",
            r"4\phantom{0}\phantom{0}2",
            "x ~= 42",
            "x =~ 42",
            "x = ~42",
            "x /= 42",
            "x =/= 42",
            r"x =\= 42",
            r"the answer is $i\boxed{42}$",
        ],
    ),
]
KINDS = {
    "nouns": NOUNS,
    "counted": COUNTED,
    "denied": DENIED,
    "boxes": BOXES,
    "units": UNITS,
    "currencies": CURRENCIES,
    "style": STYLE,
    "approximate": APPROXIMATE,
    "choices": CHOICES,
    "systems": SYSTEMS,
    "times": TIMES,
    "sets": SETS,
    "logarithms": LOGARITHMS,
    "numbers": NUMBERS,
}


def answers(kind: Kind) -> list[tuple[str, str, bool]]:
    """Every pair of a kind: (gold, answer, whether it is right)."""
    rights = [(gold, answer, True) for gold, right, _ in kind for answer in right]
    return rights + [(gold, answer, False) for gold, _, wrong in kind for answer in wrong]

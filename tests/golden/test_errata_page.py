"""The page of errata: every entry has its tests, every equation cited is the one that is meant."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.errata_page import NUMBERS, PAGE, entry
from tests.paper_equations import EQUATIONS, citations, counted, swapped, wrong

ROOT = Path(__file__).resolve().parents[2]
CITING = [
    *(ROOT / "docs" / name for name in ("errata.md", "theory.md")),
    *sorted((ROOT / "src" / "flare" / "theory").glob("*.py")),
    *sorted((ROOT / "tests" / "golden").glob("test_errata_[st]*.py")),
]
TESTS = "\n".join(path.read_text() for path in sorted((ROOT / "tests" / "golden").glob("test_errata_[st]*.py")))


def test_the_page_has_three_lists_and_numbers_that_stay() -> None:
    heads = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert heads == ["Errors and slips", "Gaps in proofs, and their repair", "What the paper leaves unsaid"]
    assert sorted(NUMBERS) == list(range(1, 18))


@pytest.mark.parametrize("number", sorted(NUMBERS))
def test_every_entry_has_a_test_of_its_name_and_names_its_file(number: int) -> None:
    named = re.findall(rf"^def (test_erratum_{number}_\w+)", TESTS, re.MULTILINE)
    assert named
    (line,) = re.findall(r"^Tests?: (.+)$", entry(number), re.MULTILINE)
    files = re.findall(r"`(tests/[\w/]+\.py)`", line)
    assert files
    defined = "\n".join((ROOT / path).read_text() for path in files)
    assert all(f"def {name}(" in defined for name in named)


@pytest.mark.parametrize("number", sorted(NUMBERS))
def test_every_entry_says_where_in_the_paper(number: int) -> None:
    (line,) = re.findall(r"^Where: (.+)$", entry(number), re.MULTILINE)
    assert citations(line) or re.search(r"Algorithm [12], line|Remark \d", line)


@pytest.mark.parametrize("path", CITING, ids=lambda path: path.name)
def test_every_equation_cited_is_the_one_meant(path: Path) -> None:
    assert wrong(path.read_text()) == []


def test_a_wrong_number_would_be_found() -> None:
    assert wrong("Eq. (33) asks for a constant ρ") == []
    assert wrong("Eq. (28) asks for a constant ρ")  # the slip that this test is for
    assert wrong("Eq. (41)")
    assert [number for number, _ in citations("Eqs. (8) and (9), Eq. (19d)")] == [8, 9, 19]


def test_two_citations_that_change_places_would_be_found() -> None:
    exchanged = swapped(PAGE)
    assert len(exchanged) > 30
    assert [text for text in exchanged if wrong(text) == []] == []


def test_equations_are_counted_as_latex_does() -> None:
    source = r"""
    \begin{equation}\label{a} x \end{equation}
    \begin{align}\label{b} x \nonumber \\ y \end{align}  % \begin{equation}
    \begin{subequations}\label{c}\begin{align} x \label{d}\\ y \end{align}\end{subequations}
    \begin{equation}\begin{aligned} x \\ y \end{aligned}\end{equation}
    """
    assert counted(source) == {1: ["a"], 2: ["b"], 3: ["c", "d"], 4: []}


@pytest.fixture
def source() -> str:
    """The paper's LaTeX source."""
    path = os.environ.get("FLARE_PAPER")
    if not path:
        pytest.skip("FLARE_PAPER does not name the paper's LaTeX source: what is cited is not looked up again")
    return Path(path).read_text(encoding="utf-8")


PRINTED = [
    r"g_{r,i}^{j-1},\,j=0,1,\cdots,\tau_{r,i}-1",  # 7: Eq. (8), the scaled local step
    r"\sum_{j=0}^{\tau_{r,i}-1} \eta_{\mathrm{l}}\frac{\bar{\tau}_r}{\tau_{r,i}}g_{r,i}^{j-1}",  # 7: the next
    r"After the BS determines the value of $\overline{\tau}_r$, it calls Alg.",  # 7: Section IV-D
    r"After a device subset $\mathcal{M}_r$ is selected, the BS determines $\bar{\tau}_r$",  # 7: Section III-A
    r"t_{y}^*$, $\mathcal{Q}_k \gets \mathcal{Q}_k \cup \{z\}$",  # 7: Algorithm 1, line 13
    r"\sum_{q \in \mathcal{Q}_r}\frac{1}{\tau_{r,q}}",  # 7: the sum of Theorem 4
    r"would violate the latency threshold $t_{\mathrm{thr}}$. This proposed scheduling policy is summarized",  # 7: IV-B
    r"until $|\Pi_k|=0$ or constraint \eqref{constraint 1 of P4} is satisfied. A suboptimal",  # 7: the next sentence; 2
    r"\frac{1}{M}\sum_{i \in \mathcal{M}_r}{\widetilde{\Delta}_{r,i}}",  # 7: Algorithm 2, line 14
    r"\overset{(a)}{=} \mathbb{E}\left[ \left\|{\bf{w}}_{r,i}^{j-1}",  # 7: step (a) of the drift
    r"The size of the subset $\Pi_k$ also decreases gradually",  # 14
    r"and (b) is from \textbf{Assumption~1}",  # 16
    r"(d) is based on \textbf{Assumption 1}",  # 16
    r"further rescale the RHS of",  # 17
    r"with a bounded global gradient",  # 10 and 17
    r"which illustrates the convergence error introduced by the imbalanced local SGD iterations",  # 13
    r"arbitrary device selections",  # 9
    r"every 20 devices among the $K$ devices perform 12, 6, and 3 local updates",  # 9: Fig. 3
    r"\max }\limits_{i\in \mathcal{M}_r} \{ {\tau _{1,i}}\} $ for $ r>1$",  # 9: FMaS
    r"$\tau_{r,i}$ of each device $i$ follows an exponential distribution with the mean value $\tau$",  # 9: Section V-A
    r"large due to a deeper neural network structure and $\eta_{\rm g}$ is relatively small",  # 12: Section IV-C
]
TOLD = [  # docs/results.md says that the paper gives these, docs/theory.md that it settles these before the local steps
    r"The path-loss exponent is 3.76",
    r"The CPU frequency of a device follows a uniform distribution between 2 GHz and 4 GHz",
    r"represent the computation capacity of device $i$ in round $r$",
    r"sorted by label and distributed randomly among the devices",
    r"$\eta_{\mathrm{l}} =0.005$ for MNIST and $\eta_{\mathrm{l}} =0.01$ for CIFAR-10",
    r"namely FedAvg~\cite{fedavg}, a fixed number $\tau$ of local stochastic gradient descent (SGD) updates",
    r"The BS broadcasts the global model ${\bf{w}}_r$, $\overline{\tau}_r$ and the allocated bandwidth",
]


def test_what_the_page_says_is_printed_is_in_the_source(source: str) -> None:
    line = " ".join(source.split())
    assert {printed: line.count(printed) for printed in PRINTED + TOLD} == dict.fromkeys(PRINTED + TOLD, 1)


def test_what_the_paper_settles_before_the_local_steps_is_not_said_to_be_unsaid() -> None:
    text = " ".join((ROOT / "docs" / "theory.md").read_text().split())
    said, unsaid = text.split("So far the paper says the same.")
    assert "τ̄ are settled before the round's mini-batches are drawn (Section III-A; Algorithm 2, lines 3 to 6)" in said
    assert "settled before" not in unsaid.split("### Lemma 1")[0]


def test_entry_17_leaves_to_entry_10_what_is_said_there() -> None:
    assert "What follows for Theorem 2 from entry 10" in " ".join(entry(17).split())


def test_lines_of_the_pages_are_at_most_120_long() -> None:
    for name in ("errata.md", "theory.md"):
        lines = (ROOT / "docs" / name).read_text().splitlines()
        assert [line for line in lines if len(line) > 120] == [], name


@pytest.mark.parametrize("name", ["errata.md", "theory.md", "results.md"])
def test_no_line_begins_with_a_mark_that_markdown_reads_as_a_quotation_or_a_list(name: str) -> None:
    lines = (ROOT / "docs" / name).read_text().splitlines()
    assert [line for line in lines if line.startswith((">", "+ ", "* "))] == []


def test_the_table_of_equations_is_that_of_the_source(source: str) -> None:
    found = counted(source)
    assert list(found) == list(EQUATIONS)
    for number, (label, _) in EQUATIONS.items():
        assert label in found[number] or (not label and not found[number]), number

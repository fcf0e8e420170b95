"""Wordy tables of the site become cards, all else stays as it is."""

from __future__ import annotations

from website.cards import MANY_WORDS, with_cards

SHORT = "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>"
LONG_TEXT = "word " * (MANY_WORDS + 1)


def table(*rows: tuple[str, str]) -> str:
    body = "".join(f"<tr><td>{one}</td><td>{other}</td></tr>" for one, other in rows)
    return f"<table><thead><tr><th>system</th><th>rule</th></tr></thead><tbody>{body}</tbody></table>"


def test_a_table_that_can_be_read_side_by_side_stays_as_it_is() -> None:
    page = f"<p>before</p>{SHORT}<p>after</p>"
    assert with_cards(page) == page


def test_each_cell_of_a_long_row_stands_after_the_name_of_its_column() -> None:
    page = with_cards(f"<p>before</p>{table(('one', LONG_TEXT), ('one', 'again ' * 200))}{SHORT}")
    assert page.startswith('<p>before</p><table class="cards">')
    assert page.endswith(SHORT)
    assert page.count('<td data-label="system"><div>one</div></td>') == 2  # rows with equal cells, too
    assert f'<td data-label="rule"><div>{LONG_TEXT}</div></td></tr>' in page
    assert "<th>system</th><th>rule</th>" in page  # for those who have it read aloud

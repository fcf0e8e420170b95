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
    assert page.startswith('<p>before</p><table class="cards" role="table">')
    assert page.endswith(SHORT)
    assert page.count('<td role="cell" data-label="system"><div>one</div></td>') == 2  # rows with equal cells, too
    assert f'<td role="cell" data-label="rule"><div>{LONG_TEXT}</div></td></tr>' in page
    heads = '<th role="columnheader">system</th><th role="columnheader">rule</th>'
    assert heads in page  # for those who have it read aloud


def test_names_of_columns_may_hold_what_html_has_a_meaning_for() -> None:
    given = table(("one", LONG_TEXT)).replace("<th>rule</th>", '<th style="x"><code>a</code> &lt; "b" &amp; c</th>')
    assert 'data-label="a &lt; &quot;b&quot; &amp; c"' in with_cards(given)


def test_words_of_tags_do_not_count() -> None:
    linked = '<a class="one two three four five" href="there">here</a> ' * (MANY_WORDS // 2)
    given = table(("one", linked))
    assert with_cards(given) == given

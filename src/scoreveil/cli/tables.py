"""A table of a report, in the terminal."""

import rich.table

from scoreveil.audit.report.table import Table


def shown(table: Table, title: str = "", intervals: bool = False) -> rich.table.Table:
    """With its groups above the headings; what stands in small type on a page only where it is an interval."""
    groups = [group for group, size in table.groups for _ in range(size)] or [""] * len(table.columns)
    drawn = rich.table.Table(title=title or table.name, title_justify="left")
    for i, ((heading, _), group) in enumerate(zip(table.columns, groups, strict=True)):
        is_text = bool(table.rows) and not table.rows[0][i].is_number
        head = "\n".join(filter(None, (group, *heading.split(": "))))
        drawn.add_column(head, justify="left" if is_text else "right", no_wrap=is_text and bool(heading))
    for row in table.rows:
        drawn.add_row(*(f"{cell.text} ({cell.small})" if intervals and cell.small else cell.text for cell in row))
    return drawn

"""The first screen on a terminal: at most 24 lines of 60 to 120 columns, readable without colour."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from headrace.diagnosis.result.model import Diagnosis, Note
from headrace.report.text import numbers
from headrace.report.text.screen import FirstScreen, FixLine, StepPart, capitalised, first_screen
from headrace.report.text.step_parts import part_style
from headrace.session.model import Session
from headrace.system.text.sizes import count_text

__all__ = ["MAX_LINES", "draw", "print_screen", "render", "to_ascii"]

MAX_LINES = 24
MOST_END_LINES = 7
MOST_BATCH_LINES = 6
NARROWEST, WIDEST = 60, 120

# Control characters → �: a file name may hold escape sequences, which must not act. One for one, so that styles stay aligned.
CONTROL = dict.fromkeys((*range(10), *range(11, 32), *range(127, 160)), "�")
ASCII = str.maketrans({
    "▒": "s", "▓": "d", "░": "q", "▚": "c", "▤": "n", "▥": "f", "▦": "k", "▞": "h", "█": "C", "╱": "g", "═": "w", "╳": "p",
    "·": ".", "→": ">", "≈": "~", "×": "x", "–": "-", "…": "...", "✓": "*", "’": "'", "−": "-", "±": "+-",
})  # fmt: skip


def render(
    diagnosis: Diagnosis, *, session: Session | None = None, width: int = 100, usd_per_hour: float | None = None
) -> Text:
    """Return the first screen as rich text, at most 24 lines. `width`: columns (default 100), clipped to 60 to 120."""
    return draw(first_screen(diagnosis, session=session, usd_per_hour=usd_per_hour), width=width)


def print_screen(
    console: Console, diagnosis: Diagnosis, *, session: Session | None = None, usd_per_hour: float | None = None
) -> None:
    """Print the first screen at the console's width, in ASCII where its encoding has no block characters."""
    screen = render(diagnosis, session=session, width=console.width, usd_per_hour=usd_per_hour)
    console.print(to_ascii(screen.plain) if console.options.ascii_only else screen, markup=False, highlight=False)


def draw(screen: FirstScreen, *, width: int = 100) -> Text:
    """Return the first screen as rich text, at most 24 lines. Lines left over show evidence, notes, what was not measured.

    A command below a fix, but for that of a best fix that helps, leaves lines to the first evidence and the first note.
    """
    width = max(NARROWEST, min(WIDEST, width))
    first = [note for note in screen.notes if note.is_in_batches or note.kind == "standstill"]
    last = [note for note in screen.notes if note not in first]
    head = [*_end(screen, width), _title(screen, width), *_verdict(screen, width)]
    head += _notes(first, width, limit=MOST_BATCH_LINES)
    money = _money(screen, width)
    bar = _bar(screen, width)
    why = len(_evidence(screen, width, limit=MAX_LINES, most=1))
    needed = why + len(_notes(last[:1], width, limit=2))
    helps = bool(screen.fixes and screen.fixes[0].helps)
    for commands, wrapped in (*((number, number) for number in range(len(screen.fixes), 0, -1)), (1, 0), (0, 0)):
        fixes = _fixes(screen, width, commands=commands, wrapped=wrapped)
        spare = MAX_LINES - sum(map(len, (head, money, bar, fixes))) - 1
        if spare >= (4 + needed if commands > 1 or not helps else needed if wrapped else 0):
            break
    blanks = min(4, max(0, spare - needed))
    spare -= blanks
    why = why if why <= spare else 0
    notes = _notes(last, width, limit=max(0, spare - why))
    spare -= len(notes)
    missing = _not_measured(screen, width, limit=1 + min(3, max(0, spare - why)))
    spare -= len(missing) - 1
    evidence = _evidence(screen, width, limit=max(0, spare))
    lines: list[Text] = []
    for number, block in enumerate((head + evidence, money, bar, fixes, notes + missing)):
        if number and block and number <= blanks:
            lines.append(Text())
        lines.extend(block)
    drawn = Text("\n").join(lines[:MAX_LINES])
    drawn.plain = drawn.plain.translate(CONTROL)
    return drawn


def to_ascii(text: str) -> str:
    """Return the text with block characters, arrows and other symbols replaced by ASCII, for encodings that lack them."""
    return text.translate(ASCII).encode("ascii", "replace").decode()


def _end(screen: FirstScreen, width: int) -> list[Text]:
    """How the command ended, on the first line, and what shows it: at most `MOST_END_LINES` lines."""
    if not screen.end:
        return []
    wrapped = textwrap.wrap(f"{capitalised(screen.end)}.", width, max_lines=4, placeholder=" …")
    lines = [Text(line, style="bold color(208)") for line in wrapped]
    for sentence in screen.end_evidence:
        wrapped = textwrap.wrap(capitalised(sentence), width - 2)
        if len(lines) + len(wrapped) > MOST_END_LINES:
            break
        lines += [Text(("  " if number else "- ") + line) for number, line in enumerate(wrapped)]
    return lines


def _title(screen: FirstScreen, width: int) -> Text:
    left, right = f"headrace  {screen.command}", " · ".join(screen.scope)
    room = width - len(right) - 2
    left = left if len(left) <= room else left[: max(0, room - 1)] + "…"
    return Text(left.ljust(room + 2) + right, style="dim")


def _verdict(screen: FirstScreen, width: int) -> list[Text]:
    lines = [Text(line, style="bold") for line in textwrap.wrap(screen.headline, width)[:4]]
    facts = screen.kind
    if screen.share is not None:
        facts += f" · {numbers.percent(screen.share)} of the {screen.share_of}"
    facts += f" · confidence {screen.confidence_word} ({screen.confidence:.2f})"
    if screen.simulated:
        facts += f" · {screen.simulated}: compute is a timed wait"
    return [*lines, Text(facts, style="color(31)" if screen.is_healthy else "color(208)")]


def _evidence(screen: FirstScreen, width: int, *, limit: int, most: int | None = None) -> list[Text]:
    """Return the sentences of the evidence that fit whole into `limit` lines. most: how many of them; by default all."""
    lines: list[Text] = []
    for sentence in [*filter(None, (screen.explanation, *screen.evidence))][:most]:
        wrapped = textwrap.wrap(capitalised(sentence), width - 2)
        if len(lines) + len(wrapped) > limit:
            break
        lines += [Text(("  " if number else "- ") + line) for number, line in enumerate(wrapped)]
    return lines


def _money(screen: FirstScreen, width: int) -> list[Text]:
    """Return the rates now and with the best fix, the ceiling and the hours saved: one line, or more on a narrow screen."""
    line = Text()
    if screen.img_s is None:
        line.append(f"images per second: {numbers.NOT_MEASURED}")
    else:
        line.append(f"{numbers.image_rate(screen.img_s)} img/s", style="bold")
        line.append(f" now{f' ({screen.simulated})' if screen.simulated else ''}")
    if screen.reachable_img_s is not None:
        line.append("  →  ")
        line.append(f"{numbers.image_rate(screen.reachable_img_s)} img/s", style="bold color(31)")
        line.append(f" with the best fix ({screen.reachable_words})")
    more = []
    if screen.ceiling_img_s is not None:
        more.append(f"ceiling {numbers.image_rate(screen.ceiling_img_s)} img/s {screen.ceiling_words}")
    money = f" (${screen.usd:,.0f})" if screen.usd is not None else ""
    if screen.recoverable is not None:
        more.append(f"best fix saves {numbers.hours(screen.recoverable)} of 100 {screen.hours_unit}{money}")
    elif screen.no_gain:
        more.append(screen.no_gain)
    rest = "  ·  ".join(more)
    if not rest:
        return [line]
    if line.cell_len + len(rest) + 5 > width:
        return [line, *(Text(part) for part in textwrap.wrap(rest, width))]
    line.append(f"  ·  {rest}")
    return [line]


def _bar(screen: FirstScreen, width: int) -> list[Text]:
    title = Text("Where a step goes", style="bold")
    times = [f"{name} {numbers.milliseconds(value)}" for name, value in (("mean", screen.step_s), ("p95", screen.step_p95_s))]
    line = "  " + " · ".join(times)
    for name, p50, p95 in screen.spread:
        more = f"   {name} p50 {numbers.milliseconds(p50)} · p95 {numbers.milliseconds(p95)}"
        if title.cell_len + len(line + more) <= width:
            line += more
    title.append(line, style="not bold")
    if not screen.parts:
        return [title, Text(f"  {numbers.NOT_MEASURED}")]
    bar = Text()
    for part, cells in zip(screen.parts, numbers.rounded_to_whole([p.share for p in screen.parts], total=width), strict=True):
        style = part_style(part.key)
        bar.append(style.fill * cells, style=style.colour)
    return [title, bar, *_legend(screen.parts, width)]


def _legend(parts: Sequence[StepPart], width: int) -> list[Text]:
    lines = [Text()]
    for part in parts:
        style = part_style(part.key)
        entry = f" {part.short} {f'{part.percent} %' if part.percent else '<1 %'}"
        if lines[-1].cell_len + len(entry) + 3 > width:
            lines.append(Text())
        if lines[-1].cell_len:
            lines[-1].append("  ")
        lines[-1].append(style.fill, style=style.colour)
        lines[-1].append(entry)
    return lines


def _fixes(screen: FirstScreen, width: int, *, commands: int, wrapped: int) -> list[Text]:
    """Return the lines of the fixes: one row per fix, and below each of the first `commands` its whole command.

    A change that is wider than its column is wrapped in the first `wrapped`, and cut in the others.
    """
    if not screen.fixes:
        return [Text(line) for line in textwrap.wrap(screen.no_fix, width)]
    columns = COLUMNS if width >= WIDE else COLUMNS[:2]  # a narrow screen has no room for the last column
    room = width - sum(size for _, size in columns)
    lines = [Text(line) for line in textwrap.wrap(screen.advice or "", width)]
    lines.append(Text(_row("Best fixes (img/s)", [name for name, _ in columns], room, columns), style="bold"))
    for number, line in enumerate(screen.fixes, 1):
        style = "dim" if line.helps is False else ""
        cells = (_predicted(line), _measured(line), line.then)
        change = [" ".join(f"{number} {line.fix.change}".split())]
        if number <= wrapped:
            change = textwrap.wrap(change[0], room - 1, subsequent_indent="  ", break_on_hyphens=False)
        lines.append(Text(_row(change[0], cells, room, columns), style=style))
        lines += [Text(part, style=style) for part in change[1:]]
        if line.command and number <= commands:
            command = textwrap.wrap(line.command, width - 4, break_on_hyphens=False)
            lines += [Text(f"    {part}", style=style or "color(31)") for part in command]
        if line.fix.verified_basis and number <= commands:
            basis = textwrap.wrap(f"✓ {line.fix.verified_basis}", width - 4, subsequent_indent="  ")
            lines += [Text(f"    {part}", style=style) for part in basis]
    if any(line.command for line in screen.fixes[commands:]):
        lines.append(Text(f"    The report has the {'other ' if commands else ''}commands.", style="dim"))
    if screen.order_note:
        lines.append(Text(screen.order_note, style="dim"))
    return lines


WIDE = 96
COLUMNS = (("predicted (80 % interval)", 26), ("measured", 10), ("then limited by", 17))
"""Headings and widths of the columns after the first."""


def _row(first: str, cells: Sequence[str], room: int, columns: Sequence[tuple[str, int]]) -> str:
    rest = zip(cells, columns, strict=False)
    return (_cut(first, room - 1).ljust(room) + "".join(_cut(cell, size - 1).ljust(size) for cell, (_, size) in rest)).rstrip()


def _cut(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _predicted(line: FixLine) -> str:
    fix = line.fix
    if fix.predicted_img_s is None:
        return "not predicted"
    low_high = f" ({numbers.image_rate(fix.interval[0])}–{numbers.image_rate(fix.interval[1])})" if fix.interval else ""
    return f"{numbers.image_rate(fix.predicted_img_s)}{low_high}"


def _measured(line: FixLine) -> str:
    return "–" if line.fix.verified_img_s is None else f"✓ {numbers.image_rate(line.fix.verified_img_s)}"


def _notes(notes: Sequence[Note], width: int, *, limit: int) -> list[Text]:
    """Return at most `limit` lines of notes: each on one line, or on two where that leaves room for the others.

    The first evidence stands with the note where it fits as a whole.
    """
    lines: list[Text] = []
    more = len(notes) - limit + 1 if len(notes) > limit > 0 else 0
    notes, limit = notes[: len(notes) - more], limit - (more > 0)
    for number, note in enumerate(notes):
        room = min(2, limit - len(lines) - (len(notes) - number - 1))
        if room > 0:
            proved = _wrapped(f"Note: {note.text} ({'; '.join(note.evidence[:1])})", width)
            short = textwrap.wrap(f"Note: {note.text}", width, max_lines=room, placeholder=" …", subsequent_indent="  ")
            lines += [Text(line) for line in (proved if note.evidence and len(proved) <= room else short)]
    return [*lines, Text(f"{count_text(more, 'more note')} in the report")] if more else lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ")


def _not_measured(screen: FirstScreen, width: int, *, limit: int) -> list[Text]:
    if not screen.not_measured:
        return [Text(screen.nothing_missing, style="dim")]
    text = "Not measured: " + " · ".join(screen.not_measured)
    return [Text(line, style="dim") for line in textwrap.wrap(text, width, max_lines=limit, placeholder=" …")]

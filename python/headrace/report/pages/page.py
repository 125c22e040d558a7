"""The frame of every HTML page: head, style sheet, security policy, figures in a row, and writing the file."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from headrace._native import __version__
from headrace.errors import HeadraceError
from headrace.report.drawing.markup import Html, no_break, tag
from headrace.report.text import numbers
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_files import make_output_folder

__all__ = ["asset", "figure", "footer", "header", "html_page", "write_page"]


def html_page(title: str, *body: str | None, css: str = "", images: bool = False, scripts: bool = False) -> str:
    """Return a whole HTML page that fetches nothing: style, images and scripts stand in the file itself.

    `css` follows the common style sheet `page.css`. `images`, `scripts`: whether the page may hold `data:` images and its own
    scripts (default: neither).
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    policy += "; script-src 'unsafe-inline'" if scripts else ""
    policy += "; img-src data:" if images else ""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", title),
        tag("style", Html(asset("page.css") + css)),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", *body), lang="en") + "\n"


def header(command: str, scope: str | None = None) -> Html:
    """Return the first line of a page: the command whose result the page shows and, at the right, `scope`."""
    about = None if scope is None else tag("span", no_break(scope), class_="scope")
    return tag("header", tag("span", "headrace", class_="brand"), tag("code", command, class_="command"), about)


def footer(*words: str) -> Html:
    """Return the last line of a page: the version of headrace, and `words`."""
    return tag("footer", tag("p", " · ".join((f"headrace {__version__}", *words))))


def asset(name: str) -> Html:
    """Return the text of a file in this package (CSS, script, SVG) as markup."""
    return Html(resources.files("headrace.report.pages").joinpath(name).read_text(encoding="utf-8"))


def figure(value: str | None, label: str, *, accent: bool = False) -> Html:
    """Return one large figure with its label below. `value` None: not measured."""
    kind = "value absent" if value is None else "value accent" if accent else "value"
    return tag("p", tag("span", no_break(value or numbers.NOT_MEASURED), class_=kind), tag("span", label, class_="label"))


def write_page(
    path: Path,
    text: str,
    *,
    name: str,
    error: type[HeadraceError],
    hint: str | None = None,
    make_folder: bool = False,
    private: bool = False,
) -> Path:
    """Write the text of a page to `path` atomically and return `path`.

    `name` is what the message of `error` calls the page. `make_folder`: make the folder of `path` if it is missing.
    `private`: only the owner may read the file. Raises `error` when the file cannot be written.
    """
    try:
        if make_folder:
            make_output_folder(path.parent)
        atomic_write(path, text.encode("utf-8", "backslashreplace"), private=private)  # a file name may hold lone surrogates
    except OSError as reason:
        raise error(f"cannot write the {name} {path}: {reason.strerror or reason}", hint=hint) from reason
    return path

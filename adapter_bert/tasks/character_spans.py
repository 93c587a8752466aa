"""Sentences whose entities are characters of a text, as annotators write them.

Rows of doccano, Prodigy and spaCy, of Label Studio (JSON and JSON-MIN), NER
Annotator, LightTag and Dataturks become words with tags.
"""

import bisect
import collections
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from absl import logging

from adapter_bert import json_lines
from adapter_bert.data.memory_rows import FileOrRows
from adapter_bert.data.tables import ending_of, read_objects
from adapter_bert.errors import UserError
from adapter_bert.tasks.tagging_files import (
    NO_ENTITY,
    Sentences,
    Tag,
    WordColumns,
    cut_words,
    find_entities,
    json_line,
    peek,
    split_tag,
)

# Keys of rows and of their spans; the first that holds something counts.
TEXTS = "text", "content"
SPANS = "spans", "entities", "label", "labels", "annotations", "annotation"
STARTS, ENDS = ("start", "start_offset"), ("end", "end_offset")
LABELS, SLICES = ("label", "labels", "tag"), ("text", "value")
# A task's annotations in Label Studio, today and before 2021.
ANNOTATIONS = "annotations", "completions"
# NER Annotator's rows, and LightTag's: a key of the file's one object.
WHOLE = "classes", "examples"


class _Span(NamedTuple):
    """A label of the characters from `start` up to `end`, which are `text`."""

    start: int
    end: int
    label: str
    text: Optional[str] = None

    def __str__(self) -> str:
        return f"{self.start}-{self.end}"


def has_texts(line: Any, columns: WordColumns) -> bool:
    """True if a file's first line or object is, or holds, rows of texts."""
    value = _parsed(line)
    words = value.get(columns.keys[0])
    if isinstance(words, list) and all(isinstance(w, str) for w in words):
        return False
    is_row = _is_task(value) or _text_key(value, columns) is not None
    return is_row or any(key in value for key in WHOLE)


def _is_task(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("data"), Mapping)


def _text_key(value: Mapping[str, Any], columns: WordColumns) -> Optional[str]:
    keys = [columns.token] if columns.token else TEXTS
    return next((k for k in keys if isinstance(value.get(k), str)), None)


def _first(value: Mapping[str, Any], keys: Iterable[str]) -> Any:
    values = [x for x in map(value.get, keys) if x is not None]
    return next((x for x in values if x != []), values[0] if values else None)


def read_texts(
    path: FileOrRows,
    lines: Iterator[Any],
    columns: WordColumns,
    needs_tags: bool,
    apart: bool,
) -> Sentences:
    """Reads texts with spans, of lines of JSON or objects.

    Words are the file's tokens, else those of `cut_words`. Unless `needs_tags`,
    spans are not looked at and no row is left out. The log counts rows that are
    left out, and what was changed.
    """
    notes: collections.Counter[str] = collections.Counter()
    has_spans: list[bool] = []

    def read(value: Mapping[str, Any], where: str) -> Optional[tuple]:
        try:
            return read_row(value)
        except ValueError as error:
            if ending_of(path) == ".jsonl":
                raise
            what = "task" if _is_task(value) else "row"
            number = where.rpartition(":")[2]
            raise UserError(f"{path}: {what} {number}: {error}") from error

    def read_row(value: Mapping[str, Any]) -> Optional[tuple]:
        if needs_tags and (reason := _why_left_out(value)):
            notes[f"rows are left out: {reason}"] += 1
            return None
        text, labelled, others = _open(value, columns, notes)
        places = _tokens(value, text) or cut_words(text, apart)
        if not needs_tags:
            json_line(others).encode()
            return text, places, None, others
        has_spans.append(labelled is not None)
        if labelled is None:
            notes["rows name no spans, so they hold no entity"] += 1
        spans = _check(list(map(_span, _flat(labelled))), text, notes)
        return text, places, _tag(spans, text, places, notes), others

    rows = [
        (number, *row)
        for number, row in read_objects(path, _rows(path, lines), read)
        if row is not None
    ]
    for note, count in (+notes).items():
        logging.warning("%s: %d %s", path, count, note)
    if not any(places for _, _, places, *_ in rows):
        raise UserError(f"{path} is empty: it holds no word")
    if needs_tags and not any(has_spans):
        raise UserError(
            f"{path}: no row has spans, expected a list of them as "
            f"{columns.tag or ', '.join(SPANS)} (--tag_column names another)"
        )
    numbers, texts, places, tags, others = zip(*rows)
    return Sentences.of_texts(
        path,
        texts,
        places,
        numbers,
        tags=[tag for of_row in tags for tag in of_row] if needs_tags else None,
        text=others,
        columns=columns,
    )


def texts_alone(path: FileOrRows, lines: Iterator[Any]) -> Iterator[Any]:
    """Yields lines; objects with the `text` in place of rows with spans.

    Rows that say their text as `text`, next to no tokens, are left as they are.
    """
    first = next(lines, None)
    lines = itertools.chain([] if first is None else [first], lines)
    value, columns = _parsed(first), WordColumns()
    is_plain = _text_key(value, columns) == TEXTS[0] and "tokens" not in value
    if is_plain or not has_texts(value, columns):
        yield from lines
        return
    for number, line in enumerate(_rows(path, lines), 1):
        value = _parsed(line)
        if value:
            try:
                line = {
                    TEXTS[0]: _open(value, columns, collections.Counter())[0]
                }
            except ValueError as error:
                raise UserError(f"{path}:{number}: {error}") from error
        yield line


def _parsed(line: Any) -> Mapping[str, Any]:
    """Gives a line's object, empty if it is none, which its reader refuses."""
    if isinstance(line, str):
        try:
            line = json.loads(line)
        except (ValueError, RecursionError):
            line = None
    return line if isinstance(line, Mapping) else {}


def _rows(path: FileOrRows, lines: Iterator[Any]) -> Iterator[Any]:
    """Yields lines; in place of a whole file's object the rows in it."""
    first, lines = peek(lines)
    value = _parsed(first)
    if any(key in value for key in WHOLE):
        lines = itertools.dropwhile(lambda line: line is not first, lines)
        next(lines)
        rows = value.get("examples", value.get("annotations"))
        for row in rows if isinstance(rows, list) else [rows]:
            if isinstance(row, list) and len(row) == 2:
                text, spans = row
                row = {"text": text, "spans": spans}
            if not isinstance(row or {}, Mapping):
                raise UserError(
                    f"{path}: found {_shown(row)}, expected a text and its "
                    "spans, as NER Annotator and LightTag write them"
                )
            # NER Annotator has null for what nobody has seen.
            yield row or ""
    yield from lines


def _why_left_out(value: Mapping[str, Any]) -> str:
    if _is_task(value):
        annotations = _first(value, ANNOTATIONS)
        if not annotations:
            return "nobody has annotated them"
        if not list(_kept(annotations)):
            return "their annotations were cancelled"
    return ""


def _kept(annotations: Any) -> Iterator[Mapping[str, Any]]:
    """Yields annotations that count, the ground truth first."""
    if not isinstance(annotations, list) or not all(
        isinstance(one, Mapping) for one in annotations
    ):
        raise ValueError("'annotations' is no list of objects")
    kept = [one for one in annotations if not one.get("was_cancelled")]
    yield from sorted(kept, key=lambda one: not one.get("ground_truth"))


def _open(
    value: Mapping[str, Any],
    columns: WordColumns,
    notes: collections.Counter[str],
) -> tuple[str, Any, dict[str, Any]]:
    """Gives a row's text, its spans, and its other members."""
    if not _is_task(value):
        key = _text_key(value, columns) or columns.token or TEXTS[0]
        keys = [columns.tag] if columns.tag else SPANS
        others = {k: x for k, x in value.items() if k not in (*keys, "tokens")}
        return json_lines.text_at(value, key), _first(value, keys), others
    data = value["data"]
    texts = [key for key, text in data.items() if isinstance(text, str)]
    key = _text_key(data, columns) or (texts[0] if len(texts) == 1 else "text")
    text = json_lines.text_at(data, key)
    others = {"id": value["id"]} if "id" in value else {}
    kept = list(_kept(_first(value, ANNOTATIONS) or []))
    if len(kept) > 1:
        notes[
            "rows have several annotations, of which the ground truth counts, "
            "else the first"
        ] += 1
    spans = []
    results = kept[0].get("result") if kept else None
    if not isinstance(results or [], list):
        raise ValueError(f"'result' is {_shown(results)}, expected a list")
    for one in results or ():
        kind = one.get("type") if isinstance(one, Mapping) else one
        if kind == "labels":
            spans.append(one.get("value"))
        else:
            notes[f"results of the type {kind} are passed over"] += 1
    return text, spans, {**others, "text": text}


def _tokens(
    value: Mapping[str, Any], text: str
) -> Optional[list[tuple[int, int]]]:
    """Finds the words' places in Prodigy's tokens, if there are any."""
    tokens = value.get("tokens")
    if not isinstance(tokens, list):
        return None
    places = []
    for token in tokens:
        start, end = _places(token)
        if not 0 <= start <= end <= len(text):
            raise ValueError(
                f"the token {start} to {end} of a text of {len(text)} "
                "characters"
            )
        # A tokenizer's blanks are no words.
        if text[start:end].strip():
            if places and (start < places[-1][0] or end < places[-1][1]):
                raise ValueError(
                    f"the token {start} to {end} is behind "
                    f"{places[-1][0]} to {places[-1][1]}; expected tokens in "
                    "the order of the text"
                )
            places.append((start, end))
    return places


def _flat(spans: Any) -> list[Any]:
    """Lists spans; an object of Dataturks has several places of a label."""
    if isinstance(spans, Mapping):
        spans = spans.get("entities", spans or None)
    if not isinstance(spans, (list, tuple)) and spans is not None:
        raise ValueError(
            f"expected a list of spans, found {_shown(spans)}; pass the key "
            "that holds the spans as --tag_column"
        )
    flat = []
    for span in spans or ():
        points = span.get("points") if isinstance(span, Mapping) else None
        if isinstance(points, list):
            for point in points:
                # The end is the last character.
                end = _places(point)[1] + 1
                flat.append({**point, "end": end, "label": span.get("label")})
        else:
            flat.append(span)
    return flat


def _span(span: Any) -> _Span:
    if isinstance(span, (list, tuple)) and len(span) == 3:
        span = dict(zip(("start", "end", "label"), span))
    start, end = _places(span)
    label = _first(span, LABELS)
    if isinstance(label, list) and len(label) == 1:
        [label] = label
    if isinstance(label, (int, float)):
        raise ValueError(
            f"the span {start}-{end} has the label {label}, a number whose "
            "name is in another file; export labels by name (of doccano "
            "JSONL with text labels)"
        )
    if not isinstance(label, str) or not label.strip():
        raise ValueError(
            f"the span {start}-{end} has the label {_shown(label)}, expected "
            "one name"
        )
    text = _first(span, SLICES)
    return _Span(start, end, label, text if isinstance(text, str) else None)


def _places(span: Any) -> tuple[int, int]:
    places = [None]
    if isinstance(span, Mapping):
        places = [_first(span, STARTS), _first(span, ENDS)]
    if not all(
        type(x) is int or isinstance(x, float) and x.is_integer()
        for x in places
    ):
        raise ValueError(
            f'found {_shown(span)}, expected a span, as {{"start": 0, "end": '
            '5, "label": "ORG"} or [0, 5, "ORG"]'
        )
    return int(places[0]), int(places[1])


def _shown(value: Any) -> str:
    return repr(value)[:80]


def _check(
    spans: list[_Span], text: str, notes: collections.Counter[str]
) -> list[_Span]:
    """Checks spans against their text; turns UTF-16 units into characters."""
    faults = list(filter(None, (_fault(span, text) for span in spans)))
    if not faults:
        return spans
    units, characters = 0, {}
    for number, letter in enumerate(f"{text} "):
        characters[units] = number
        units += 1 + (ord(letter) > 0xFFFF)
    of_units = [
        span._replace(
            start=characters.get(span.start, -1),
            end=characters.get(span.end, -1),
        )
        for span in spans
    ]
    if any(span.text is None or _fault(span, text) for span in of_units):
        raise ValueError(faults[0])
    notes["rows count UTF-16 units, which were turned into characters"] += 1
    return of_units


def _fault(span: _Span, text: str) -> str:
    """Says why a span is none of the text, or ""."""
    place = (
        f"span {span.start} to {span.end} of a text of {len(text)} characters"
    )
    if not 0 <= span.start <= span.end <= len(text):
        return f"{place}: it is outside of the text"
    there = text[span.start : span.end]
    expected = there if span.text is None else span.text
    # Label Studio writes a line break as two characters.
    first, second = (x.replace("\\n", "\n").split() for x in (expected, there))
    if first != second:
        return (
            f"{place}: it says {expected[:80]!r}, but there is {there[:80]!r}"
        )
    return ""


def _tag(
    spans: list[_Span],
    text: str,
    places: list[tuple[int, int]],
    notes: collections.Counter[str],
) -> list[Tag]:
    """Gives the words at these places tags in BIO."""
    tags = [NO_ENTITY] * len(places)
    starts, ends = ([place[x] for place in places] for x in (0, 1))
    before: Optional[_Span] = None
    for span in sorted(spans, key=lambda span: span[:2]):
        inside = text[span.start : span.end]
        start = span.start + len(inside) - len(inside.lstrip())
        end = span.end - len(inside) + len(inside.rstrip())
        # Words that hold any of the characters.
        first = bisect.bisect(ends, start)
        past = bisect.bisect_left(starts, end)
        if start >= end or first >= past:
            raise ValueError(f"the span {span} covers no word")
        if before and (span.start < before.end or tags[first].type):
            raise ValueError(
                f"the spans {before} and {span} overlap, but a word has one "
                "tag; leave out one of them"
            )
        before = span
        is_trimmed = span[:2] != (start, end)
        notes["spans are trimmed: they begin or end with blanks"] += is_trimmed
        notes["spans are widened: they begin or end inside a word"] += (
            starts[first] < start or end < ends[past - 1]
        )
        kind = "_".join(span.label.split())
        notes["spans have a blank in their label, which becomes _"] += (
            kind != span.label
        )
        tags[first] = Tag("B", kind)
        tags[first + 1 : past] = [Tag("I", kind)] * (past - first - 1)
    return tags


def write_texts(rows: Sentences, tags: Sequence[str]) -> Iterator[str]:
    """Yields lines of JSON: the rows' other members, and tags as spans."""
    for others, places, of_row in zip(
        rows.text, rows.divide(rows.places.tolist()), rows.divide(tags)
    ):
        spans = [
            {
                "start": places[entity.start][0],
                "end": places[entity.end - 1][1],
                "label": entity.type,
            }
            for entity in find_entities(list(map(split_tag, of_row)))
        ]
        changed = {**others, rows.columns.tag or SPANS[0]: spans}
        yield f"{json_line(changed)}\n"

"""Reads and checks pages of HTML."""

from html.parser import HTMLParser

# Elements that have no end.
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """A page that was parsed.

    Attributes:
        elements: (tag, attributes, texts within, tags around) of each.
    """

    def __init__(self, text):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open[-1][0]}"

    def handle_starttag(self, tag, attributes):
        one = (tag, dict(attributes), [], [e[0] for e in self._open])
        assert len(one[1]) == len(attributes), f"{tag} repeats an attribute"
        self.elements.append(one)
        if tag not in VOID:
            self._open.append(one)

    def handle_endtag(self, tag):
        assert self._open[-1][0] == tag
        self._open.pop()

    def handle_data(self, data):
        for one in self._open:
            one[2].append(data)

    def all(self, tag):
        """(attributes, text) of all elements of a kind."""
        return [
            (attributes, " ".join("".join(texts).split()))
            for name, attributes, texts, _ in self.elements
            if name == tag
        ]

    def texts(self, tag):
        """The texts of all elements of a kind."""
        return [text for _, text in self.all(tag)]

    @property
    def text(self):
        """All text that is shown."""
        return self.texts("main")[0]

    def check(self):
        """Checks that the page is self-contained, valid and accessible."""
        ids = [e[1]["id"] for e in self.elements if "id" in e[1]]
        assert len(ids) == len(set(ids))
        levels = [int(e[0][1]) for e in self.elements if e[0] in HEADINGS]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(b <= a + 1 for a, b in zip(levels, levels[1:]))
        for tag, attributes, texts, around in self.elements:
            assert tag not in ("script", "link", "img", "iframe", "object")
            for name, value in attributes.items():
                assert not name.startswith("on")
                assert "://" not in value, (tag, name, value)
                if name in ("src", "href"):
                    assert value[0] == "#" and value[1:] in ids
                if name in ("aria-labelledby", "aria-describedby"):
                    assert value in ids
            if tag == "style":
                style = "".join(texts)
                assert "url(" not in style and "@import" not in style
            if tag == "svg":
                assert attributes["role"] == "img"
                assert {"aria-labelledby", "aria-describedby"} <= set(
                    attributes
                )
                assert around[-1] == "figure"
            if tag == "th":
                assert attributes["scope"] in ("row", "col")
            if tag == "td":
                assert "table" in around
        assert len(self.all("table")) == len(self.all("caption"))
        figures = len(self.all("figure"))
        assert figures == len(self.all("svg")) == len(self.texts("title")) - 1
        assert all(self.texts("caption") + self.texts("figcaption"))
        assert self.all("html")[0][0] == {"lang": "en"}
        assert "viewport" in [a.get("name") for a, _ in self.all("meta")]


HEADINGS = ("h1", "h2", "h3", "h4")

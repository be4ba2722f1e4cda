"""Parse HTML pages."""

from html.parser import HTMLParser


class Structure(HTMLParser):
    """HTML parser that checks that tags are closed in order, and collects tags, texts and external files."""

    VOID = ("meta", "img", "br", "col", "wbr")

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.pictures: list[dict] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.tags.append(tag)
        self.loads += [named[key] for key in ("src", "href", "srcset", "data", "poster") if key in named]
        self.ids += [named["id"]] if "id" in named else []
        self.pictures += [named] if tag == "img" else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

"""What a page or a picture holds, as JSON: read_page.py FILE. Read by Python's own XML parser, which refuses what is not
well-formed."""
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def local(element):
    return element.tag.split("}")[-1]


def numbers(text, separator=" "):
    return [None if word == "?" else float(word) for word in text.split(separator) if word]


def text_of(element):
    return " ".join("".join(element.itertext()).split())


def picture(element):
    """Of an <svg>: its words, and the numbers that its marks carry."""
    found = {"title": "", "description": "", "series": {}, "levels": [], "bars": {}, "marks": [], "maps": {}, "texts": []}
    for child in element.iter():
        name = local(child)
        if name == "title" and child.get("id"):
            found["title"] = text_of(child)
        elif name == "desc":
            found["description"] = text_of(child)
        elif name == "text":
            found["texts"].append(text_of(child))
        if child.get("data-series") is not None:
            found["series"][child.get("data-series")] = [numbers(point, ",") for point in child.get("data-points").split()]
            found.setdefault("drawn", {})[child.get("data-series")] = sum(
                1 for mark in child if mark.get("class") == "dot" or (mark.get("class") or "").startswith("line"))
        if child.get("data-level") is not None:
            found["levels"].append(float(child.get("data-level")))
        if child.get("data-bar") is not None:
            found["bars"][child.get("data-bar")] = numbers(child.get("data-values"))
        if child.get("data-mark") is not None:
            found["marks"].append(float(child.get("data-mark")))
        if child.get("data-map") is not None:
            found["maps"][child.get("data-map")] = [
                [None if word == "nan" else float(word) for word in row.get("data-values").split()] for row in child
                if row.get("data-values") is not None]
    return found


def main():
    root = ElementTree.parse(sys.argv[1]).getroot()
    page = {"pictures": {}, "figures": {}, "files": {}, "outside": [], "tables": [], "elements": {}, "ids": [],
            "text": text_of(root)}
    for element in root.iter():
        name = local(element)
        page["elements"][name] = page["elements"].get(name, 0) + 1
        if element.get("id"):
            page["ids"].append(element.get("id"))
        if name == "svg" and "picture" in (element.get("class") or ""):
            page["pictures"][element.get("id")] = picture(element)
        if name == "figure":
            page["figures"][element.get("id")] = text_of(element)
        if name == "table":
            page["tables"].append([[text_of(cell) for cell in row] for row in element.iter() if local(row) == "tr"])
        for key, value in element.attrib.items():
            if key in ("href", "src") and value.startswith("data:"):
                page["files"][element.get("download")] = urllib.parse.unquote(value.split(",", 1)[1], errors="strict")
            elif key in ("href", "src", "srcset", "style") or key.startswith("on"):
                if not value.startswith("#"):
                    page["outside"].append(value)
        if name == "style" and ("@import" in element.text or "url(" in element.text):
            page["outside"].append("style")
    page["twice"] = sorted({one for one in page["ids"] if page["ids"].count(one) > 1})
    json.dump(page, sys.stdout)


main()

"""Texts that break tokenizers, from a seed: words in many scripts, marks, joiners, spaces of all kinds, files of this machine."""
import functools
import glob
import gzip
import os
import random
import unicodedata


# Characters whose properties the wheels and Debian's libraries take from different versions of Unicode are left out:
# those that are not assigned here, those that the wheel does not decompose yet, and combining ones that it does not put
# into their order yet.
@functools.cache
def changed():
    from tokenizers import normalizers
    wheels = {form: getattr(normalizers, form)() for form in ("NFC", "NFD", "NFKC", "NFKD")}

    def differs(text, forms):
        return any(wheels[form].normalize_str(text) != unicodedata.normalize(form, text) for form in forms)

    last = "\u0345"  # of the greatest combining class
    some = (chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co"))
    return {c for c in some if differs(c, wheels) or (unicodedata.combining(c) != 0 and differs("a" + last + c, ["NFD"]))}


def same_everywhere(text):
    return "".join(c for c in text if c not in changed() and unicodedata.category(c) != "Cn")


# Name, first and last code point: 44 scripts and kinds of signs.
RANGES = [
    ("latin", 0x41, 0x7A), ("latin-1", 0xA1, 0xFF), ("latin-extended", 0x100, 0x24F), ("ipa", 0x250, 0x2AF),
    ("marks", 0x300, 0x36F), ("greek", 0x386, 0x3FF), ("cyrillic", 0x400, 0x4FF), ("armenian", 0x531, 0x586),
    ("hebrew", 0x591, 0x5EA), ("arabic", 0x60C, 0x669), ("syriac", 0x710, 0x74A), ("thaana", 0x780, 0x7B1),
    ("nko", 0x7C0, 0x7FA), ("devanagari", 0x901, 0x97F), ("bengali", 0x981, 0x9FB), ("gurmukhi", 0xA01, 0xA75),
    ("gujarati", 0xA81, 0xAF1), ("oriya", 0xB01, 0xB77), ("tamil", 0xB82, 0xBFA), ("telugu", 0xC00, 0xC6F),
    ("kannada", 0xC80, 0xCF2), ("malayalam", 0xD00, 0xD7F), ("sinhala", 0xD82, 0xDF4), ("thai", 0xE01, 0xE5B),
    ("lao", 0xE81, 0xEDF), ("tibetan", 0xF00, 0xFDA), ("myanmar", 0x1000, 0x109F), ("georgian", 0x10A0, 0x10FF),
    ("jamo", 0x1100, 0x11FF), ("ethiopic", 0x1200, 0x1399), ("cherokee", 0x13A0, 0x13FD), ("khmer", 0x1780, 0x17F9),
    ("mongolian", 0x1800, 0x18AA), ("greek-extended", 0x1F00, 0x1FFE), ("punctuation", 0x2000, 0x206F),
    ("signs", 0x20A0, 0x22FF), ("enclosed", 0x2460, 0x27BF), ("hiragana", 0x3041, 0x3096), ("katakana", 0x30A0, 0x30FF),
    ("han", 0x4E00, 0x9FA5), ("hangul", 0xAC00, 0xD7A3), ("forms", 0xF900, 0xFAFF), ("fullwidth", 0xFF01, 0xFFEE),
    ("gothic", 0x10330, 0x1034A), ("mathematical", 0x1D400, 0x1D7FF), ("emoji", 0x1F300, 0x1F64F),
    ("han-b", 0x20000, 0x2A6D6), ("symbols", 0x21, 0x40)]
SPACES = [" ", " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\xa0", "\u1680", "\u180e",
          "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", " \n ", "\n \n", "\t\t"]
PIECES = ["'s", "'S", "'Re", "'LL", "I'm", "don't", "DON'T", "'\u017f", "\u2019s", "'", "''", "1234567890", "3.14", "\u0661\u0662\u0663", "\u096a\u096b",
          "\u2460\u00bd\u2167", "e\u0301", "a\u030a\u0323", "\u1e9b\u0323", "\ufb01", "\u212b", "\u2126", "\uac00\u11a8", "\u1112\u1161\u11ab",
          "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\u0130\u0131", "\u1e9e\u00df", "\u01c5",
          "</s>", "<s>", "<|endoftext|>", "<|endoftext|> ", "<0x41>", "\u2581", "\u2581\u2581", "_", "foo_bar", "->", "!=", "==", "//", "/*", "*/", "{}", "();",
          "\0", "\x01\x7f", "\ufffd", "\ufffe", "\U0010ffff", "\ue000", "http://example.org/?q=1&r=%20", "CamelCaseWord", "x" * 300, "ab" * 200,
          "\u4e2d\u6587" * 60, "-" * 120, "\u0300" * 40, " " * 70, "\n" * 30, "aB3\u00e9" * 50]


def word(r):
    _, first, last = r.choice(RANGES)
    length = r.choice([1, 2, 3, 4, 5, 6, 7, 9, 14, 40])
    return "".join(chr(r.randint(first, last)) for _ in range(length))


def generated(seed, size):
    """About `size` bytes of text, in texts of a few hundred characters."""
    r = random.Random(seed)
    while size > 0:
        parts = []
        for _ in range(r.randint(1, 60)):
            kind = r.random()
            if kind < 0.45:
                parts.append(word(r))
            elif kind < 0.65:
                parts.append(r.choice(PIECES))
            elif kind < 0.70:  # random bytes, as far as they are text
                parts.append(r.randbytes(r.randint(1, 24)).decode("utf-8", "replace" if r.random() < 0.5 else "ignore"))
            elif kind < 0.75:
                code = r.randint(0, 0x10FFFF)
                parts.append("" if 0xD800 <= code < 0xE000 else chr(code))
            else:
                parts.append(r.choice(SPACES))
        text = same_everywhere("".join(parts))
        size -= len(text.encode())
        yield text


FILES = ["/usr/share/doc/**/*.gz", "/usr/share/doc/**/*", "/usr/share/locale/*/LC_MESSAGES/*.mo", "/usr/share/perl/*/unicore/**/*.txt",
         "/usr/share/perl/*/unicore/*.p[lm]", "/usr/lib/python3*/**/*.py", "/usr/include/**/*.h"]


def files(seed, size):
    """About `size` bytes of files of this machine that are UTF-8, or of their parts that are, in texts of at most 20 kB."""
    r = random.Random(seed)
    paths = sorted({path for pattern in FILES for path in glob.glob(pattern, recursive=True)})
    r.shuffle(paths)
    for path in paths:
        if size <= 0:
            return
        if not os.path.isfile(path) or os.path.getsize(path) > 4 << 20:
            continue
        try:
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
                data = file.read(400_000)
        except OSError:
            continue
        text = same_everywhere(data.decode("utf-8", "replace"))
        for at in range(0, len(text), 20_000):
            yield text[at:at + 20_000]
            size -= len(text[at:at + 20_000].encode())

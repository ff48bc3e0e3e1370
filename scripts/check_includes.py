"""The arrows of the design: who may include whom. Run by scripts/check_includes.sh; rules in scripts/rooms.txt.

    check_includes.py             complains of every include that the rules refuse; exit code 1 if there is one
    check_includes.py --arrows    prints the arrows between rooms, as "FROM TO COUNT" lines
"""
import collections
import os
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
SOURCE = re.compile(r"\.(h|cpp|cu|cuh|inc)$")
PUBLIC = "core/include/orthant/"
GENERATED = PUBLIC + "abi/"
PLUGINS_AT_TOP = ("offload",)
TOPS = ("core", "router", "experts", "parallel", "offload", "plugins", "apps",
        "bench/fit", "bench/compare", "bench/study", "bench/command")


def sources():
    for top in TOPS:
        for folder, _, names in os.walk(top):
            yield from (os.path.join(folder, name) for name in names if SOURCE.search(name))


def rooms():
    """The rooms in their order; for each app the apps that it names; for each header of others the rooms that may."""
    with open("scripts/rooms.txt") as lines:
        lines = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    split = [line.partition(":") for line in lines]
    inside = [line for line in split if not line[0].startswith("<")]
    return ([room for room, _, _ in inside], {room: named.split() for room, colon, named in inside if colon},
            {header[1:-1]: named.split() for header, _, named in split if header.startswith("<")})


def arrow_refusal(room, other, order, apps):
    """Why a file of `room` may not include one of `other`; None where it may."""
    if other in apps:
        return None if other in apps.get(room, ()) else f"{room} does not name the app {other}"
    if room in apps:
        return None
    return f"{other} stands above {room}" if order.index(other) > order.index(room) else None


def room_of(path, order):
    """The innermost room that holds the file; None where no room does."""
    folder = os.path.dirname(path)
    while folder:
        if folder in order:
            return folder
        folder = os.path.dirname(folder)
    return None


def resolve(file, bracket, path):
    """The file of the tree that is meant, or None for a header of somebody else."""
    if bracket == "<":
        return PUBLIC + path[len("orthant/"):] if path.startswith("orthant/") else (path if os.path.exists(path) else None)
    beside = os.path.normpath(os.path.join(os.path.dirname(file), path))
    return beside if os.path.exists(beside) else path if os.path.exists(path) else None


def includes(file):
    """Line, path as written and file of the tree (None: somebody else's) of each."""
    with open(file) as source:
        text = source.read()
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start(2)) + 1, match.group(2), resolve(file, match.group(1), match.group(2))


def plugin_of(file):
    """The folder of the plugin that the file belongs to: plugins/NAME, or offload; None for the core's."""
    parts = file.split("/")
    return "/".join(parts[:2]) if parts[0] == "plugins" else parts[0] if parts[0] in PLUGINS_AT_TOP else None


def plugin_refusal(file, path, target):
    """Why a plugin may not include it; None where it may."""
    own = plugin_of(file)
    if target.startswith(PUBLIC):
        known = os.path.exists(target) or target.startswith(GENERATED)
        return None if known else "which is no public header of the core"
    if target.startswith(own + "/"):
        return None if not path.startswith(own + "/") else "by a path that holds only in this tree"
    return "a plugin includes <orthant/...> and its own files only"


def main():
    order, apps, others = rooms()
    files = sorted(sources())
    arrows = collections.Counter()
    problems = []
    for room in order:
        if not os.path.isdir(room):
            problems.append(f"scripts/rooms.txt: there is no folder {room}")
    for file in files:
        room = room_of(file, order)
        found = []
        for line, path, target in includes(file):
            if target:
                found.append((line, path, target))
            elif room not in others.get(path, [room]):
                problems.append(f"{file}:{line}: includes {path}: that is for {', '.join(others[path])} alone (scripts/rooms.txt)")
        if plugin_of(file) and room not in apps:
            for line, path, target in found:
                why = plugin_refusal(file, path, target)
                if why:
                    problems.append(f"{file}:{line}: includes {path}: {why}")
            continue
        if room is None:
            problems.append(f"{file}: it stands in no room of scripts/rooms.txt")
            continue
        for line, path, target in found:
            other = room_of(target, order)
            if other is None:
                problems.append(f"{file}:{line}: includes {path}, which is in no room that it may see")
                continue
            if other != room:
                arrows[(room, other)] += 1
                why = arrow_refusal(room, other, order, apps)
                if why:
                    problems.append(f"{file}:{line}: includes {path}: {why} (scripts/rooms.txt)")
    if "--arrows" in sys.argv[1:]:
        for (room, other), count in sorted(arrows.items(), key=lambda item: (order.index(item[0][0]), order.index(item[0][1]))):
            print(room, other, count)
        return 0
    for problem in problems:
        print(f"includes: {problem}", file=sys.stderr)
    return 1 if problems else 0


sys.exit(main())

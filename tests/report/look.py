"""Looks at a page in headless Chromium: look.py PAGE FOLDER. Screenshots are left in FOLDER.

At the width of a phone and of a desk, in light and dark: nothing overflows, no texts of a picture touch or leave it,
text is not tiny, and each picture's pixels are of more than one colour, the marks' among them. Exit code 77: there is
no Chromium.
"""
import collections
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import urllib.parse
import zlib

SIZES = {"phone": 390, "desk": 1280}
HEIGHT = 900
SCALE = 0.5  # of screenshots: a browser draws no more than 16384 pixels in height, and fewer are sooner read

# A window cannot be as narrow as a phone, so the page stands in a frame. Boxes are in pixels of the page.
FRAME = """<!DOCTYPE html>
<html style="color-scheme: light dark"><body style="margin: 0">
<iframe id="frame" src="file://%(page)s" style="border: 0; width: %(width)dpx; height: %(height)dpx"></iframe>
<script>
window.addEventListener('load', () => {
  const view = document.getElementById('frame').contentWindow, page = view.document, root = page.documentElement;
  const problems = [];
  const say = text => { if (problems.length < 40) problems.push(text); };
  if (root.scrollWidth > root.clientWidth) say('the page is ' + root.scrollWidth + ' wide, the window ' + root.clientWidth);
  const pictures = [];
  for (const picture of page.querySelectorAll('svg.picture')) {
    const frame = picture.getBoundingClientRect();
    const texts = [...picture.querySelectorAll('text')].map(text => ({box: text.getBoundingClientRect(), text: text.textContent}));
    for (const {box, text} of texts) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)
        say(picture.id + ': "' + text + '" leaves the picture');
      if (box.height < 8) say(picture.id + ': "' + text + '" is ' + box.height.toFixed(1) + ' pixels high');
    }
    for (let i = 0; i < texts.length; ++i)
      for (let j = 0; j < i; ++j) {
        const a = texts[i].box, b = texts[j].box;
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left), high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 3.5) say(picture.id + ': "' + texts[i].text + '" and "' + texts[j].text + '" overlap');
      }
    pictures.push({id: picture.id, box: [frame.left, frame.top + view.scrollY, frame.width, frame.height]});
  }
  const found = {width: root.clientWidth, height: root.scrollHeight, problems, pictures,
    back: view.getComputedStyle(page.body).backgroundColor};
  const holder = document.createElement('pre');
  holder.id = 'found';
  holder.textContent = encodeURIComponent(JSON.stringify(found));
  holder.style.display = 'none';
  document.body.appendChild(holder);
});
</script></body></html>
"""


def browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return name
    print("no chromium here: not looked at")
    sys.exit(77)


def run(program, arguments, theme, profile):
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
               "--disable-extensions", "--allow-file-access-from-files", "--user-data-dir=" + profile,
               "--virtual-time-budget=2000"]
    if theme == "dark":
        command.append("--blink-settings=preferredColorScheme=0")
    done = subprocess.run(command + arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    return done.stdout.decode("utf-8", "replace")


def png_rows(path):
    """Rows of (r, g, b) bytes."""
    with open(path, "rb") as file:
        data = file.read()
    at, packed, width, height, channels = 8, b"", 0, 0, 0
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and colour in (2, 6), "an unexpected kind of PNG"
            channels = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    raw, stride, rows = zlib.decompress(packed), width * channels, []
    before = bytearray(stride)
    for y in range(height):
        kind, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        if kind == 1:
            for i in range(channels, stride):
                line[i] = (line[i] + line[i - channels]) & 255
        elif kind == 2:
            line = bytearray(map(lambda a, b: (a + b) & 255, line, before))
        elif kind == 3:
            for i in range(stride):
                line[i] = (line[i] + ((line[i - channels] if i >= channels else 0) + before[i]) // 2) & 255
        elif kind == 4:
            for i in range(stride):
                a, b, c = line[i - channels] if i >= channels else 0, before[i], before[i - channels] if i >= channels else 0
                p = a + b - c
                pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
                line[i] = (line[i] + (a if pa <= pb and pa <= pc else b if pb <= pc else c)) & 255
        rows.append(bytes(line))
        before = line
    return width, height, channels, rows


def colours_in(image, box):
    width, height, channels, rows = image
    left, top, right, bottom = (int(round(v * SCALE)) for v in (box[0], box[1], box[0] + box[2], box[1] + box[3]))
    found = collections.Counter()
    for row in rows[max(top, 0):min(bottom, height)]:
        part = row[max(left, 0) * channels:min(right, width) * channels]
        found.update(part[i:i + 3] for i in range(0, len(part), channels))
    return found


def vivid(colour):
    return max(colour) - min(colour) > 40


def look(program, page, folder, name, width, theme, profile):
    frame = os.path.join(folder, "frame.html")

    def show(arguments, height):
        with open(frame, "w", encoding="utf-8") as file:
            file.write(FRAME % {"page": urllib.parse.quote(page), "width": width, "height": height})
        return run(program, [f"--window-size={max(width, 500)},{height}"] + arguments + ["file://" + frame], theme, profile)

    dom = show(["--dump-dom"], HEIGHT)
    match = re.search(r'<pre id="found"[^>]*>(.*?)</pre>', dom, re.S)
    if not match:
        return [f"{name}: the browser did not show the page"]
    found = json.loads(urllib.parse.unquote(match.group(1)))
    problems = [f"{name}: {problem}" for problem in found["problems"]]
    if abs(found["width"] - width) > 1:
        problems.append(f"{name}: the window is {found['width']} wide, not {width}")
    if not found["pictures"]:
        problems.append(f"{name}: there is no picture")
    shot = os.path.join(folder, name + ".png")
    show(["--screenshot=" + shot, f"--force-device-scale-factor={SCALE}"], found["height"])
    image = png_rows(shot)
    back = bytes(int(v) for v in re.findall(r"\d+", found["back"])[:3])
    if (sum(back) > 384) != (theme == "light"):
        problems.append(f"{name}: the background is {tuple(back)}")
    for picture in found["pictures"]:
        colours = colours_in(image, picture["box"])
        marks = sum(count for colour, count in colours.items() if vivid(colour))
        if len(colours) < 8 or marks < 20:
            problems.append(f"{name}: {picture['id']} is blank: {len(colours)} colours, {marks} pixels of marks")
    return problems


def main():
    program = browser()
    page, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    os.makedirs(folder, exist_ok=True)
    problems = []
    for theme, name in (("light", "desk"), ("dark", "phone")):
        problems += look(program, page, folder, f"{name}-{theme}", SIZES[name], theme, os.path.join(folder, "profile"))
    shutil.rmtree(os.path.join(folder, "profile"), ignore_errors=True)
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


main()

#!/usr/bin/env python3
"""Fetches scikit-learn's digits, 1,797 images of 8 x 8 pixels in ten classes, and writes them as two IDX files.

    python3 configs/labs/fetch_digits.py [--out FOLDER]       # default: build/labs

They are in the PyPI package scikit-learn (BSD licence; from UCI's "Optical Recognition of Handwritten Digits"), of which
this takes the wheel, 9 MB, and one file. Nothing is installed.
"""
import argparse
import csv
import gzip
import io
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MEMBER = "sklearn/datasets/data/digits.csv.gz"


def fetch():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder,
                   "scikit-learn"]
        if subprocess.run(command).returncode != 0:
            sys.exit("pip could not download scikit-learn: " + " ".join(command))
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            print(f"{wheel.name}: {MEMBER}")
            return gzip.decompress(archive.read(MEMBER)).decode()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "build" / "labs")
    out = parser.parse_args().out
    images, labels = out / "digits-images-idx3-ubyte", out / "digits-labels-idx1-ubyte"
    if images.exists() and labels.exists():
        print(f"{images} is there")
        return
    rows = [[int(float(cell)) for cell in row] for row in csv.reader(io.StringIO(fetch()))]
    if len(rows) != 1797 or any(len(row) != 65 or not 0 <= row[64] <= 9 or max(row[:64]) > 16 for row in rows):
        sys.exit(f"{MEMBER} is not what it was: expected 1797 rows of 64 pixels in 0..16 and a digit")
    out.mkdir(parents=True, exist_ok=True)
    pixels = bytes(round(pixel * 255 / 16) for row in rows for pixel in row[:64])
    images.write_bytes(b"\0\0\x08\x03" + struct.pack(">III", len(rows), 8, 8) + pixels)
    labels.write_bytes(b"\0\0\x08\x01" + struct.pack(">I", len(rows)) + bytes(row[64] for row in rows))
    print(f"{images}\n{labels}")


if __name__ == "__main__":
    main()

"""complete_in_zsh.py FOLDER LINE...: what a line of zsh becomes by a tab, with the completions in FOLDER."""
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time


def until(fd, mark, seconds=30):
    """All that comes up to `mark`, without escape sequences."""
    text, end = b"", time.time() + seconds
    while mark not in text and time.time() < end:
        if select.select([fd], [], [], 0.1)[0]:
            text += re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x07|\r", b"", os.read(fd, 65536))
    return text.decode(errors="replace")


pid, fd = pty.fork()
if pid == 0:
    os.environ.update(TERM="xterm", PS1="READY> ")
    os.execvp("zsh", ["zsh", "-f", "-i"])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
until(fd, b"READY> ")
os.write(fd, f"fpath=({sys.argv[1]} $fpath); autoload -U compinit && compinit -u -D; print DO''NE\n".encode())
until(fd, b"DONE")
for line in sys.argv[2:]:
    # The key behind the tab is bound to a widget that shows the line as it is then.
    os.write(fd, b"shown() { print; print \"LINE:$BUFFER:END\"; BUFFER= }; zle -N shown; bindkey '^G' shown; print SE''T\n")
    until(fd, b"SET")
    os.write(fd, line.encode() + b"\t\x07")
    print(until(fd, b":END").partition("LINE:")[2].partition(":END")[0])
os.write(fd, b"exit\n")

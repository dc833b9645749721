# SPDX-License-Identifier: Apache-2.0
"""Asks over HTTP, on a unix socket or TCP, and reads series."""

import socket


def ask(place, path="/metrics", *, method="GET", raw=None):
    """Give the status and the body of an answer; `raw` is sent as it is."""
    family = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as caller:
        caller.settimeout(20)
        caller.connect(place)
        caller.sendall(
            raw if raw is not None else f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        answer = b""
        while piece := caller.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split(b" ")[1]) if head else 0), body.decode()


def series(text):
    """Give the samples of a text as name and labels -> value."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found

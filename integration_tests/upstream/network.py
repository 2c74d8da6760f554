"""Tells apart the tests that need a network where there is none.

A test that fails because a host outside this machine could not be reached is
reported as skipped, with the reason `needs a network`. A host that could not be
reached once is not tried again, since each try may wait for minutes.
"""

import ipaddress
import socket

import pytest

REASON = "needs a network"


class Unreachable:
    """Remembers the hosts that could not be reached, with the error."""

    def __init__(self):
        self.errors = {}

    def reach(self, host, connect):
        """Calls `connect`, unless `host` could not be reached before.

        Args:
            host: Name or address of the host.
            connect: A function without arguments.

        Returns:
            What `connect` returns.

        Raises:
            OSError: as `connect` does, noted as this host's.
        """
        if host in self.errors:
            kind, arguments = self.errors[host]
            raise _noted(kind(*arguments), host)
        try:
            return connect()
        except (BlockingIOError, InterruptedError):
            # Under way, not failed.
            raise
        except OSError as error:
            if not _is_this_machine(host):
                self.errors[host] = type(error), error.args
                _noted(error, host)
            raise


def _noted(error, host):
    error.unreachable_host = host
    return error


def _is_this_machine(host):
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == socket.gethostname()


def unreachable_host(error):
    """Returns the host that `error` came of not reaching, or `None`."""
    # An exception may be its own context's context.
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        host = getattr(error, "unreachable_host", None)
        if host is not None:
            return host
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and call.excinfo is not None:
        host = unreachable_host(call.excinfo.value)
        if host is not None:
            report.outcome = "skipped"
            report.needs_network = host
            report.longrepr = (
                str(item.path),
                0,
                f"Skipped: {REASON}: {host} could not be reached",
            )
    return report


def pytest_configure():
    unreachable = Unreachable()
    look_up = socket.getaddrinfo
    connect = socket.socket.connect

    def noting_look_up(host, *args, **kwargs):
        return unreachable.reach(host, lambda: look_up(host, *args, **kwargs))

    def noting_connect(self, address):
        if self.family not in (socket.AF_INET, socket.AF_INET6):
            return connect(self, address)
        return unreachable.reach(address[0], lambda: connect(self, address))

    socket.getaddrinfo = noting_look_up
    socket.socket.connect = noting_connect

# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between two peers, by who is at fault."""

from nri_nvidia import errors


class ProtocolError(errors.Error):
    """Raised when the rules of the protocol are broken, by either side."""

    code = "protocol-error"


class LocalProtocolError(ProtocolError):
    """Raised when we would break the rules; nothing has been sent then."""


class RemoteProtocolError(ProtocolError):
    """Raised when the peer broke the rules."""


class ConnectionLost(errors.Error):
    """Raised when a connection is gone, or goes while something waits on it."""

    code = "connection-lost"

# SPDX-License-Identifier: Apache-2.0
"""The reason of a decision: the one value that logs, `plan`, `status` and metrics all show."""

import attrs

from nri_nvidia import errors


@attrs.frozen(kw_only=True)
class Reason:
    """Why something was decided: a stable kebab-case `code`, a sentence, and what to do."""

    code: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, error: errors.Error) -> "Reason":
        """Give an error as the reason it is."""
        return cls(code=error.code, message=error.message, hint=error.hint)

    def __str__(self) -> str:
        """Give the sentence with its hint in brackets."""
        return f"{self.message} ({self.hint})" if self.hint else self.message

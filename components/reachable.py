"""Whether a server answers, asked before anything heavy starts."""

import urllib.error
import urllib.request

PATIENCE_S = 5.0
"""A server that takes longer to say that it is well counts as away."""


def why_not(address: str) -> str:
    """Why nothing good comes from a GET of `address`; '' when it is answered, be it by a question for a password."""
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S):
            return ""
    except urllib.error.HTTPError as error:
        return "" if error.code in (401, 403) else f"it answers {error.code}"  # the client has the password
    except (ValueError, OSError) as error:  # no address at all, or nobody there
        return str(getattr(error, "reason", error)) or repr(error)

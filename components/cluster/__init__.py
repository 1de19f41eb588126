"""Ray, as the stages see it: the cluster at RAY_ADDRESS, or one on this machine for the time of the stage.

`address` (is a cluster there, and does it let us in) · `places` (what it can give) · `connection` (from the first to the last moment).
"""

from components.cluster.connection import code, connected
from components.cluster.places import Asked, never, wait_for

__all__ = ["Asked", "code", "connected", "never", "wait_for"]

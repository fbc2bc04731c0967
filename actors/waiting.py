"""Every wait on an actor has a deadline, says what it waited for, and fails with a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from environments.base import Failure, FailureKind


class ActorFailure(RuntimeError):
    """An actor was lost or did not answer in time. ``kind`` tells which; the message what to look at."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def failure(self) -> Failure:
        """The same as a value."""
        return Failure(self.kind, str(self))


def await_all(refs: Sequence[Any], *, what: str, deadline_s: float, setting: str) -> list[Any]:
    """Results of all ``refs`` in order.

    Raises :class:`ActorFailure`: ``timeout`` past the deadline, ``infrastructure`` if an actor died. An exception
    raised by the actor's own code is re-raised as it is (a bug must stay loud).
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

    try:
        return list(ray.get(list(refs), timeout=deadline_s))
    except GetTimeoutError:
        raise ActorFailure(
            FailureKind.TIMEOUT,
            f"waited {deadline_s:g} s for {what} and got no answer; "
            f"raise {setting} if the work is that long, else see the actor's log in the Ray dashboard",
        ) from None
    except RayActorError as error:
        hint = " (out of memory is the usual cause: lower concurrency or the model's size)"
        raise ActorFailure(
            FailureKind.INFRASTRUCTURE,
            f"an actor was lost during {what}: {why_lost(error)}; its log is in the Ray dashboard"
            + ("" if error.actor_init_failed else hint),
        ) from None
    except RayTaskError as error:
        raise error.as_instanceof_cause() from None


def why_lost(error: Any) -> str:
    """One line on a ``RayActorError``: what the actor's constructor raised, or how Ray puts the loss."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"it could not start: {lines[-1]}" if error.actor_init_failed else lines[0]

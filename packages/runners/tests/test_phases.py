"""What a phase says that takes too long."""

from typing import Any

import pytest

from rlinf.core.errors import DeadlineExceeded
from rlinf.runners.reporting.phases import Phases


class Never:
    """A call that does not end."""

    label = "env.interact()"

    def wait(self, timeout: float | None = None) -> Any:
        raise DeadlineExceeded(self.label, f"not done after {timeout:g} s", "Raise a key of somebody else's.")

    def done(self) -> bool:
        return False


def test_the_deadline_of_a_phase_names_the_key_of_runs() -> None:
    with pytest.raises(
        DeadlineExceeded, match=r"^env\.interact\(\): not done after 0\.1 s\. Raise runner\.timeout_s if this is normal\.$"
    ):
        Phases(timeout_s=0.1).wait(Never())

"""Runs that all their processes have left: an automation of Prefect's server marks them Crashed when their heartbeats stay away.

When a run's process dies alone, the one that started it says so. When both die at once, or the machine does, nobody is left
to tell the server, and the run would be Running for ever.
"""

from datetime import timedelta

from prefect.automations import AutomationCore, EventTrigger, Posture, ResourceSpecification
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState

NAME = "runs whose processes are gone are Crashed"
FLOWS = ["end-to-end", "ablation", "ablation-member", "promote", "rollback"]
SILENCE_S = 600.0  # Prefect's flows send a heartbeat every 180 s
HEARTBEAT = "prefect.flow-run.heartbeat"
ENDS = ("Completed", "Failed", "Cancelled", "Crashed")


def register(silence_s: float = SILENCE_S) -> dict[str, str]:
    """Makes the automation, or brings it up to date; one that a person has switched off stays off. A step of prefect.yaml, too."""
    wanted = automation(silence_s)
    with get_client(sync_client=True) as client:
        known = client.read_automations_by_name(NAME)
        if known:
            wanted.enabled = known[0].enabled
            client.update_automation(known[0].id, wanted)
        else:
            client.create_automation(wanted)
    return {}


def automation(silence_s: float) -> AutomationCore:
    """As docs.prefect.io has it under *Detect zombie flows*, for this project's flows alone."""
    trigger = EventTrigger(
        after={HEARTBEAT},
        expect={HEARTBEAT, *(f"prefect.flow-run.{name}" for name in ENDS)},
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
        match_related=ResourceSpecification({"prefect.resource.role": "flow", "prefect.resource.name": FLOWS}),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=silence_s),
    )
    message = f"no sign of life for {silence_s:.0f} s: its processes are gone. Retry continues with what is missing"
    return AutomationCore(
        name=NAME,
        description="When a run and the process that started it die at once, nobody else can tell.",
        trigger=trigger,
        actions=[ChangeFlowRunState(state=StateType.CRASHED, name=None, message=message, force=False)],
    )

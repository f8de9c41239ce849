"""The bounds of an autoscaled fleet at a moment, by the schedules of its LLMDeployment.

Used by the operator before each decision, and where it reports the bounds. Pure: whoever calls tells the time.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from fairlead.api.llmdeployment import Autoscaling, ScalingSchedule, Weekday
from fairlead.api.scaling_policy import fewest_replicas, most_replicas

DAYS = tuple(Weekday)


def bounds_at(spec: Autoscaling, now: datetime) -> Autoscaling:
    """The same with the bounds that apply at `now`, and with that schedule alone which they are from.

    A bound that the schedule leaves out is the fleet's own, moved as far as the schedule's other bound asks for.
    """
    schedule = next((each for each in spec.schedules if applies(each, now)), None)
    if schedule is None:
        return replace(spec, schedules=()) if spec.schedules else spec
    fewest, most = schedule.min_replicas, schedule.max_replicas
    if fewest is None:
        fewest = min(fewest_replicas(spec), most_replicas(spec) if most is None else most)
    if most is None:
        most = max(fewest, most_replicas(spec))
    return replace(spec, min_replicas=fewest, max_replicas=most, schedules=(schedule,))


def applies(schedule: ScalingSchedule, now: datetime) -> bool:
    """Whether a schedule applies at `now`, by the clocks and the calendar of its time zone."""
    local = now.astimezone(ZoneInfo(schedule.time_zone))
    time = local.strftime("%H:%M")
    if schedule.start < schedule.end:
        return schedule.start <= time < schedule.end and _is_on(schedule, local)
    return (time >= schedule.start and _is_on(schedule, local)) or (
        time < schedule.end and _is_on(schedule, local - timedelta(days=1))
    )


def _is_on(schedule: ScalingSchedule, local: datetime) -> bool:
    return not schedule.days or DAYS[local.weekday()] in schedule.days

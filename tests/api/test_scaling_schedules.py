"""Schedules: when each applies, by the clocks of its time zone, and which bounds are in force then."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.llmdeployment import Autoscaling, ScalingSchedule, Weekday
from fairlead.api.scaling_policy import fewest_replicas, most_replicas
from fairlead.api.scaling_schedules import applies, bounds_at

OFFICE = {"time_zone": "Europe/Berlin", "days": tuple(Weekday)[:5], "start": "08:00", "end": "18:30"}
NIGHT = {"time_zone": "Europe/Berlin", "days": (Weekday.FRIDAY,), "start": "22:00", "end": "06:00"}


@pytest.mark.parametrize(
    ("fields", "moment", "expected"),
    [
        (OFFICE, "2026-06-01T06:00", True),  # a Monday in summer, at 8 in Berlin
        (OFFICE, "2026-06-01T05:59", False),
        (OFFICE, "2026-06-01T16:29", True),
        (OFFICE, "2026-06-01T16:30", False),
        (OFFICE, "2026-01-05T06:30", False),  # in winter it is half past 7
        (OFFICE, "2026-06-06T08:00", False),
        (NIGHT, "2026-06-05T20:00", True),
        (NIGHT, "2026-06-06T03:59", True),  # Saturday's morning is Friday's night
        (NIGHT, "2026-06-06T04:00", False),
        (NIGHT, "2026-06-05T03:00", False),
        ({}, "2026-06-05T03:00", True),
        ({"days": (Weekday.FRIDAY,)}, "2026-06-05T23:59", True),
        ({"days": (Weekday.FRIDAY,)}, "2026-06-06T00:00", False),
    ],
)
def test_a_schedule_applies_by_the_clocks_of_its_time_zone(fields: Any, moment: str, expected: bool) -> None:
    assert applies(ScalingSchedule(name="a", **fields), datetime.fromisoformat(moment).replace(tzinfo=UTC)) is expected


TIMES = st.integers(0, 1439).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
SCHEDULES = st.builds(
    ScalingSchedule, name=st.just("a"), time_zone=st.sampled_from(["UTC", "America/St_Johns", "Pacific/Auckland"]),
    days=st.lists(st.sampled_from(Weekday), unique=True).map(tuple), start=TIMES, end=TIMES,
    min_replicas=st.none() | st.integers(1, 4), max_replicas=st.none() | st.integers(4, 9),
)  # fmt: skip
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC))


@given(schedule=SCHEDULES, moment=MOMENTS)
def test_it_applies_since_the_last_start_and_until_the_first_end(schedule: ScalingSchedule, moment: datetime) -> None:
    """Going back in minutes of the wall clock to the last start, on a day of the schedule, without passing an end."""
    wall, found = moment.astimezone(ZoneInfo(schedule.time_zone)).replace(tzinfo=None), False
    for minutes in range(24 * 60):
        then = wall - timedelta(minutes=minutes)
        if minutes and f"{then + timedelta(minutes=1):%H:%M}" == schedule.end:
            break
        if f"{then:%H:%M}" == schedule.start:
            found = not schedule.days or [*Weekday][then.weekday()] in schedule.days
            break
    assert applies(schedule, moment) is found


@given(
    schedules=st.lists(SCHEDULES, max_size=3).map(tuple),
    moment=MOMENTS,
    least=st.none() | st.integers(1, 9),
    most=st.integers(1, 9),
)
def test_the_first_that_applies_gives_the_bounds_that_it_has(
    schedules: tuple[ScalingSchedule, ...], moment: datetime, least: int | None, most: int
) -> None:
    spec = Autoscaling(min_replicas=least, max_replicas=max(most, least or 1), schedules=schedules)
    found = bounds_at(spec, moment)
    applying = [each for each in schedules if applies(each, moment)]
    assert found.schedules == tuple(applying[:1])
    bounds = fewest_replicas(found), most_replicas(found)
    assert bounds[0] <= bounds[1]
    given = (applying[0].min_replicas, applying[0].max_replicas) if applying else (None, None)
    plain = fewest_replicas(spec), most_replicas(spec)
    for place, own in enumerate(given):
        assert bounds[place] == own or (own is None and bounds[place] in (plain[place], *given))

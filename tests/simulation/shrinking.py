"""Shrinking of failing schedules: fewer steps, fewer faults, fewer switches."""

from schedules import Wrong

ORDERS = 12  # number of orders of the ranks to try for a program with fewer steps


def failure(simulation, schedule):
    """Run a schedule and return how it fails; None if it does not."""
    try:
        simulation.run(schedule)
    except Wrong as wrong:
        return wrong
    return None


def shrunk(simulation, schedule, kind):
    """Return a smaller schedule that fails in the same way, and its failure.

    Fewer steps change what the seed of the order means, so other orders are tried, too.
    """
    found = failure(simulation, schedule)
    if found is None or found.kind != kind:
        raise AssertionError(f"the schedule does not fail again by {kind!r}: {found}")

    def attempt(changed, orders):
        nonlocal schedule, found
        for order in range(orders):
            candidate = changed if not order else changed._replace(order=changed.order + order)
            wrong = failure(simulation, candidate)
            if wrong is not None and wrong.kind == kind:
                schedule, found = candidate, wrong
                return True
        return False

    number = len(schedule.faults)
    while number:
        number -= 1
        attempt(schedule._replace(faults=schedule.faults[:number] + schedule.faults[number + 1 :]), ORDERS)
    number = len(schedule.steps)
    while number:
        number -= 1
        if len(schedule.steps) > 1 and not any(fault.step == number for fault in schedule.faults):
            attempt(_without(schedule, number), ORDERS)
    most, least = simulation.scheduler.switches, 0
    while least < most:  # the least number of switches with which it still fails
        middle = (least + most) // 2
        if attempt(schedule._replace(switches=middle), 1):
            most = middle
        else:
            least = middle + 1
    return schedule, found


def _without(schedule, number):
    faults = [fault._replace(step=fault.step - (fault.step > number)) for fault in schedule.faults]
    return schedule._replace(steps=schedule.steps[:number] + schedule.steps[number + 1 :], faults=tuple(faults))

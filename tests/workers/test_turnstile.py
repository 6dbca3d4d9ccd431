"""Turnstile: one in each round, in order; nobody is held up by who gave up, or by a loop that has ended."""

from __future__ import annotations

import asyncio

from sayso.workers.sender import Turnstile


async def rounds(turnstile: Turnstile, count: int) -> list[tuple[int, int]]:
    """Who got through, and in which round of the loop."""
    round_number, through = 0, []

    async def one(number: int) -> None:
        await turnstile.step()
        through.append((number, round_number))

    tasks = [asyncio.create_task(one(number)) for number in range(count)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        round_number += 1
    return through


def test_one_gets_through_in_each_round_in_order() -> None:
    """The first at once, each of the others a round later."""
    through = asyncio.run(rounds(Turnstile(), 4))
    first = through[0][1]
    assert [number for number, _ in through] == [0, 1, 2, 3]
    assert [at - first for _, at in through][1:] == sorted({at - first for _, at in through} - {0})


def test_who_comes_alone_does_not_wait() -> None:
    """Once the last one is through, the next comes first again."""

    async def story() -> bool:
        turnstile = Turnstile()
        for _ in range(3):
            before = asyncio.current_task()
            await asyncio.wait_for(turnstile.step(), 1)
            await asyncio.sleep(0)
            assert before is asyncio.current_task()
        step = turnstile.step()
        try:
            step.send(None)
        except StopIteration:
            return True
        return False

    assert asyncio.run(story())


def test_who_gave_up_takes_nobodys_turn() -> None:
    """A send that is cancelled while it waits leaves no gap behind."""

    async def story() -> list[str]:
        turnstile, through = Turnstile(), []

        async def one(name: str) -> None:
            await turnstile.step()
            through.append(name)

        tasks = [asyncio.create_task(one(name)) for name in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        return through

    assert asyncio.run(story()) == ["a", "c"]


def test_loop_that_ended_in_the_middle_holds_up_nobody() -> None:
    """A postman may serve one loop after the other."""
    turnstile = Turnstile()

    async def left_behind() -> None:
        for _ in range(3):
            asyncio.create_task(turnstile.step())  # noqa: RUF006  # it is to be left
        await asyncio.sleep(0)

    asyncio.run(left_behind())
    assert asyncio.run(rounds(turnstile, 2))

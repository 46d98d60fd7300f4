"""Jobs that belong together: chains, groups, schedules, progress; with asyncio at the end.

polybus serve
polybus worker flows:bus        # in this folder
python flows.py
"""

from __future__ import annotations

import asyncio

from polybus import Bus, chain, current_job, group

bus = Bus()

TEXTS = {"a.txt": "one two three", "b.txt": "four five", "c.txt": "six"}


@bus.job
def load(name: str) -> str:
    return TEXTS[name]


@bus.job
def words(text: str) -> int:
    return len(text.split())


@bus.job
def times(number: int, factor: int) -> int:
    return number * factor


@bus.job
def add_up(numbers: list[int]) -> int:
    return sum(numbers)


@bus.job
def convert(pages: int) -> str:
    for page in range(1, pages + 1):
        current_job().progress(f"page {page} of {pages}")
    return "converted"


@bus.job
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "waited"


def main() -> None:
    # One after the other: each gets the result of the one before, in front of its own arguments.
    print("chain:", chain(load.s("a.txt"), words.s(), times.s(10)).delay().get(timeout_s=30))

    # Side by side; then one gets the list of all results. The broker keeps the whole flow.
    all_words = group(words.s(text) for text in TEXTS.values())
    print("group:", all_words.delay().get(timeout_s=30))
    print("group and then:", all_words.delay(then=add_up.s()).get(timeout_s=30))
    print("and so on:", chain(all_words, add_up.s(), times.s(100)).delay().get(timeout_s=30))

    # It begins in 3 s: only what is said while somebody follows is heard.
    handle = convert.send((3,), delay_s=3)
    for word in handle.progress(timeout_s=30):
        print("progress:", word)
    print("progress:", handle.get(timeout_s=30))

    # The broker runs this every morning from now on, also when this program is long gone.
    schedule = add_up.schedule(cron="0 7 * * *", timezone="Europe/Rome", args=([1, 2],), key="example")
    print("scheduled:", schedule.key, "removed:", schedule.remove())

    asyncio.run(amain())
    bus.close()


async def amain() -> None:
    async with bus:
        handles = await asyncio.gather(*(wait.adelay(0.01) for _ in range(5)))
        print("asyncio:", await asyncio.gather(*(handle.aget(timeout_s=30) for handle in handles)))


if __name__ == "__main__":
    # Under its own name, by which the worker knows the jobs.
    import flows

    flows.main()

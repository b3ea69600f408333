"""A lab of devices with labels: alternatives, bundles, shared and exclusive use, repair, post-mortem."""

from __future__ import annotations

import asyncio

from millpond import AsyncResourcePool
from millpond.resources import want


async def main() -> None:
    async with AsyncResourcePool("lab", "memory:", holder="ci") as lab:
        await lab.add("pixel-1", labels={"os": "android", "version": 14, "nfc": True})
        await lab.add("pixel-2", labels={"os": "android", "version": 15})
        await lab.add("iphone-1", labels={"os": "ios", "version": 18})
        await lab.add("bench-power", capacity=4)  # a power supply with four outputs

        await alternatives(lab)
        await bundle(lab)
        await shared_and_exclusive(lab)
        await repair(lab)
        await post_mortem(lab)


async def alternatives(lab: AsyncResourcePool) -> None:
    """Take what there is, the best first."""
    wish = "os=android,nfc | os=android"  # as text; or [{"os": "android", "nfc": True}, {"os": "android"}]
    async with lab.acquire(wish) as first, lab.acquire(wish) as second:
        print(f"with NFC: {first.resource}; when that is taken, any Android: {second.resource}")


async def bundle(lab: AsyncResourcePool) -> None:
    """Take a sender, a receiver and two outputs of the power supply: all or nothing, so it cannot deadlock."""
    async with lab.acquire_all(
        [{"os": "android"}, {"os": "ios"}, want(name="bench-power", units=2)], reason="call between phones"
    ) as grant:
        print("bundle:", ", ".join(f"{units} of {name}" for name, units in grant.units.items()))


async def shared_and_exclusive(lab: AsyncResourcePool) -> None:
    """Share the supply between several, then lend all of it to one."""
    async with lab.acquire(name="bench-power", reason="soldering") as shared:
        calibration = asyncio.create_task(calibrate(lab))
        await asyncio.sleep(0.01)  # it stands in line now
        if await lab.try_acquire(name="bench-power") is None:
            print("three outputs are free, but nobody gets past the one who waits for all four:")
        await show(lab)
    print(f"{shared.resource} was given back: {await calibration}")


async def calibrate(lab: AsyncResourcePool) -> str:
    async with lab.acquire(name="bench-power", units="all", reason="calibration") as grant:
        return f"calibration has all {grant.units['bench-power']} outputs"


async def repair(lab: AsyncResourcePool) -> None:
    """Take a broken device out of service; its holder keeps it, and nobody gets it next."""
    async with lab.acquire({"os": "ios"}):
        await lab.admin.quarantine("iphone-1", reason="screen is cracked")
    assert await lab.try_acquire({"os": "ios"}) is None
    print(await lab.admin.explain("iphone-1"))
    await lab.admin.uncordon("iphone-1", reason="new screen")


async def post_mortem(lab: AsyncResourcePool) -> None:
    """Keep the device of a failed test as it is, for a person to look at it, beyond the test and its process."""
    async with lab.acquire({"os": "android"}, reason="test_login") as grant:
        device = grant.resource
        # transfer(): the grant leaves our hands on purpose, so the block ends in peace
        token = await lab.admin.keep(device, token=await grant.transfer(), holder="ann", reason="test_login failed")
    await show(lab)
    await lab.admin.release(device, token=token, reason="found it: a dialog was in the way")
    print("last in the history:", (await lab.admin.history(device))[-1].name)


async def show(lab: AsyncResourcePool) -> None:
    """Print who holds what, and who waits and why."""
    for holder in await lab.holders():
        print(f"  {holder} holds {', '.join(holder.resources)}: {holder.reason}")
    for waiter in await lab.waiters():
        print(f"  {waiter} waits for {' + '.join(waiter.selectors)}: {waiter.why}")


if __name__ == "__main__":
    asyncio.run(main())

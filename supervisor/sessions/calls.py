"""Asks an engine to save a slot, or to restore one: bounded, and never raising for what the engine does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

from engines.slots import SlotAnswer, SlotCall, Slots
from supervisor.instances.launch import Launch

# A gigabyte takes about a second; an engine that computes a batch answers after it.
CALL_SECONDS = 10.0
_LOOK_SECONDS = 1.0


async def ask_slot(launch: Launch, slots: Slots, call: SlotCall) -> SlotAnswer:
    """What the engine answered; not done where it did not answer in time, or at all."""
    headers = {**launch.headers, "Content-Type": "application/json"}
    try:
        async with (
            asyncio.timeout(CALL_SECONDS),
            launch.calls,
            launch.session.post(f"{launch.base_url}{call.path}", data=call.body, headers=headers) as answer,
        ):
            return slots.read_answer(answer.status, await answer.read())
    except TimeoutError:
        return SlotAnswer(done=False, why=f"no answer within {CALL_SECONDS:g} s")
    except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: the session is closed
        return SlotAnswer(done=False, why=f"no answer: {type(error).__name__}")


async def ask_uses(launch: Launch, slots: Slots) -> Mapping[int, object]:
    """Something for each slot that changes with every use of it; empty where the engine does not say, or not soon."""
    path = slots.uses_path
    if path is None:
        return {}
    try:
        async with (
            asyncio.timeout(_LOOK_SECONDS),
            launch.calls,
            launch.session.get(f"{launch.base_url}{path}", headers=launch.headers) as answer,
        ):
            return slots.uses(await answer.read())
    except (TimeoutError, aiohttp.ClientError, OSError, RuntimeError):
        return {}
